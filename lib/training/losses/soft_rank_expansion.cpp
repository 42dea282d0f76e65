#include "losses/soft_rank_expansion.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numbers>
#include <vector>

namespace tutti::internal::losses {
namespace {

/// Returns the nodes of a series: the zeros of T_terms.
const Series& nodes() {
  static const auto all = [] {
    Series made{};
    for (std::size_t i = 0; i < terms; ++i)
      made[i] = std::cos(std::numbers::pi * (static_cast<double>(i) + 0.5) / terms);
    return made;
  }();
  return all;
}

/// Returns the Chebyshev series with these values at the nodes.
Series series_through(const Series& values) {
  Series series{};
  for (std::size_t n = 0; n < terms; ++n)
    for (std::size_t i = 0; i < terms; ++i)
      series[n] += std::cos(static_cast<double>(n) * std::acos(nodes()[i])) * values[i] *
                   (n == 0 ? 1.0 : 2.0) / terms;
  return series;
}

template <typename F>
Series series_of(const F& f) {
  Series values{};
  for (std::size_t i = 0; i < terms; ++i) values[i] = f(nodes()[i]);
  return series_through(values);
}

/// The Chebyshev series of f(u, v) on the square [-1, 1]^2, where u is the target's position and v
/// the source's.
template <typename F>
Matrix matrix_of(const F& f) {
  std::array<Series, terms> at_node{};  // Element j: a series in u, at node j of v.
  for (std::size_t j = 0; j < terms; ++j)
    at_node[j] = series_of([&](double u) { return f(u, nodes()[j]); });
  Matrix matrix{};
  for (std::size_t m = 0; m < terms; ++m) {
    Series values{};
    for (std::size_t j = 0; j < terms; ++j) values[j] = at_node[j][m];
    const auto series = series_through(values);
    for (std::size_t n = 0; n < terms; ++n) matrix[n * terms + m] = series[n];
  }
  return matrix;
}

/// Returns the series of the matrix at u = v, with T_m T_n = (T_(m+n) + T_|m-n|) / 2.
Self self_of(const Matrix& matrix) {
  Self series{};
  for (std::size_t n = 0; n < terms; ++n)
    for (std::size_t m = 0; m < terms; ++m) {
      series[n + m] += matrix[n * terms + m] / 2;
      series[n > m ? n - m : m - n] += matrix[n * terms + m] / 2;
    }
  return series;
}

}  // namespace

const Action& action(std::int64_t distance) {
  static const auto all = [] {
    std::vector<Action> made;
    for (std::int64_t d = -near; d <= near; ++d) {
      const auto x = [d](double u, double v) {
        return cell_width * (static_cast<double>(d) + (v - u) / 2);
      };
      made.push_back({matrix_of([&](double u, double v) {
                        return d > 0 ? -1 / (1 + std::exp(x(u, v))) : 1 / (1 + std::exp(-x(u, v)));
                      }),
                      matrix_of([&](double u, double v) {
                        const double e = std::exp(-std::abs(x(u, v)));
                        return e / ((1 + e) * (1 + e));
                      })});
    }
    return made;
  }();
  return all[static_cast<std::size_t>(distance + near)];
}

const Far& far_field() {
  static const Far made = [] {
    Far all{};
    for (std::size_t k = 0; k < terms; ++k) {
      const bool below = k < exponentials;
      const auto i = static_cast<double>(below ? k + 1 : k + 1 - exponentials);
      const double rate = (below ? cell_width : -cell_width) / 2 * i;
      const double sign = k % 2 == 0 ? 1 : -1;
      const auto source = series_of([&](double v) { return std::exp(rate * v); });
      const auto target = series_of([&](double u) { return std::exp(-rate * u); });
      for (std::size_t n = 0; n < terms; ++n) {
        all.gather[n * terms + k] = source[n];
        all.value[k * terms + n] = (below ? sign : -sign) * target[n];
        all.slope[k * terms + n] = sign * i * target[n];
      }
    }
    return all;
  }();
  return made;
}

const std::array<double, exponentials>& decay(std::int64_t distance) {
  static const auto all = [] {
    std::array<std::array<double, exponentials>, furthest + 2> made{};  // The last is 0.
    for (std::size_t d = 0; d + 1 < made.size(); ++d)
      for (std::size_t i = 0; i < exponentials; ++i)
        made[d][i] = std::exp(-cell_width * static_cast<double>(d) * static_cast<double>(i + 1));
    return made;
  }();
  return all[static_cast<std::size_t>(std::min(distance, furthest + 1))];
}

const Self& own_value() {
  static const Self self = self_of(action(0).value);
  return self;
}
const Self& own_slope() {
  static const Self self = self_of(action(0).slope);
  return self;
}

}  // namespace tutti::internal::losses
