#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include <tutti/losses/features.hpp>

// The losses over features by their definitions, pair by pair, in long double.

namespace tutti::test {

/// All rows of one call; a double holds a feature of any dtype.
struct FeatureCall {
  std::int64_t rows = 0, dims = 1;
  std::vector<double> anchors{}, candidates{};  // [rows, dims]
  std::vector<std::int64_t> labels{};
  std::vector<double> weights{};  // Empty: 1.
};

struct FeatureReference {
  long double loss = 0, scale = 0, bias = 0;  // The loss, and the derivatives by scale and bias.
  std::vector<long double> anchors{}, candidates{};
  /// The sums of the magnitudes of what is added for scale, bias and, at most, a row's gradient:
  /// the results may be much smaller.
  long double scale_terms = 0, bias_terms = 0, gradient_terms = 0;
};

/// Random rows, normalised. With `ties`, some rows are equal.
inline FeatureCall make_feature_call(std::mt19937_64& random, std::int64_t rows, std::int64_t dims,
                                     std::int64_t labels, bool weighted, bool ties) {
  FeatureCall call{.rows = rows, .dims = dims};
  std::normal_distribution<double> normal;
  for (auto* side : {&call.anchors, &call.candidates})
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto d = static_cast<std::size_t>(dims);
      std::vector<double> row(d);
      double squares = 0;
      for (auto& x : row) {
        x = normal(random);
        squares += x * x;
      }
      for (auto& x : row) x /= std::sqrt(squares);
      if (ties && i > 0 && random() % 3 == 0)
        row.assign(side->end() - static_cast<std::ptrdiff_t>(dims), side->end());
      side->insert(side->end(), row.begin(), row.end());
    }
  for (std::int64_t i = 0; i < rows; ++i) {
    call.labels.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(labels)));
    if (weighted) call.weights.push_back(static_cast<double>(random() % 5) / 2);
  }
  return call;
}

/// One term of the loss with row i: the logits of its columns (k their products), in which own is
/// its own column or -1. Returns the term and sets the derivatives by the logits.
using ReferenceTerm = std::function<long double(std::int64_t i, const std::vector<long double>& x,
                                                std::vector<long double>& slopes)>;

/// Adds weight * term(i) for each row.
inline void add_reference_terms(const std::vector<double>& rows, const std::vector<double>& columns,
                                std::int64_t dims, const std::vector<long double>& weights,
                                long double scale, long double bias, const ReferenceTerm& term,
                                FeatureReference& out, std::vector<long double>& row_gradient,
                                std::vector<long double>& column_gradient) {
  const auto total = std::ssize(weights);
  const auto at = [dims](const std::vector<double>& all, std::int64_t i, std::int64_t d) {
    return all[static_cast<std::size_t>(i * dims + d)];
  };
  std::vector<long double> x(static_cast<std::size_t>(total));
  std::vector<long double> k(x.size());
  std::vector<long double> slopes(x.size());
  for (std::int64_t i = 0; i < total; ++i) {
    for (std::int64_t j = 0; j < total; ++j) {
      long double sum = 0;
      for (std::int64_t d = 0; d < dims; ++d)
        sum += static_cast<long double>(at(rows, i, d)) * at(columns, j, d);
      k[static_cast<std::size_t>(j)] = sum;
      x[static_cast<std::size_t>(j)] = scale * sum + bias;
    }
    const auto weight = weights[static_cast<std::size_t>(i)];
    out.loss += weight * term(i, x, slopes);
    long double of_row = 0;
    for (std::int64_t j = 0; j < total; ++j) {
      const auto slope = weight * slopes[static_cast<std::size_t>(j)];
      out.scale += slope * k[static_cast<std::size_t>(j)];
      out.bias += slope;
      out.scale_terms += std::abs(slope * k[static_cast<std::size_t>(j)]);
      out.bias_terms += std::abs(slope);
      of_row += scale * std::abs(slope);
      for (std::int64_t d = 0; d < dims; ++d) {
        row_gradient[static_cast<std::size_t>(i * dims + d)] += scale * slope * at(columns, j, d);
        column_gradient[static_cast<std::size_t>(j * dims + d)] += scale * slope * at(rows, i, d);
      }
    }
    out.gradient_terms = std::max(out.gradient_terms, of_row);
  }
}

/// log of the sum of exp(x), without column `except`.
inline long double reference_log_sum(const std::vector<long double>& x, std::int64_t except) {
  long double most = -INFINITY;
  for (std::size_t j = 0; j < x.size(); ++j)
    if (static_cast<std::int64_t>(j) != except) most = std::max(most, x[j]);
  long double sum = 0;
  for (std::size_t j = 0; j < x.size(); ++j)
    if (static_cast<std::int64_t>(j) != except) sum += std::exp(x[j] - most);
  return most + std::log(sum);
}

inline std::vector<long double> reference_weights(const FeatureCall& call, long double divisor) {
  std::vector<long double> weights(static_cast<std::size_t>(call.rows), 1);
  if (!call.weights.empty()) weights.assign(call.weights.begin(), call.weights.end());
  long double mass = 0;
  for (const auto w : weights) mass += w;
  for (auto& w : weights) w = mass > 0 ? w / (divisor * mass) : 0;
  return weights;
}

/// Both directions of a loss of pairs.
inline FeatureReference reference_of_pairs(const FeatureCall& call, long double scale,
                                           long double bias, const ReferenceTerm& term) {
  FeatureReference out;
  out.anchors.resize(call.anchors.size());
  out.candidates.resize(call.candidates.size());
  const auto weights = reference_weights(call, 2);
  add_reference_terms(call.anchors, call.candidates, call.dims, weights, scale, bias, term, out,
                      out.anchors, out.candidates);
  add_reference_terms(call.candidates, call.anchors, call.dims, weights, scale, bias, term, out,
                      out.candidates, out.anchors);
  return out;
}

inline FeatureReference reference_clip(const FeatureCall& call, double scale, double smoothing) {
  return reference_of_pairs(
      call, scale, 0,
      [&](std::int64_t i, const std::vector<long double>& x, std::vector<long double>& slopes) {
        const auto all = reference_log_sum(x, -1);
        const auto count = static_cast<long double>(x.size());
        long double loss = 0;
        for (std::size_t j = 0; j < x.size(); ++j) {
          const bool own = static_cast<std::int64_t>(j) == i;
          const auto target = (own ? 1 - static_cast<long double>(smoothing) : 0) +
                              static_cast<long double>(smoothing) / count;
          loss += target * (all - x[j]);
          slopes[j] = std::exp(x[j] - all) - target;
          if (own)  // exp(x - all) - 1, without its cancellation.
            slopes[j] = -1 / (1 + std::exp(x[j] - reference_log_sum(x, i))) +
                        static_cast<long double>(smoothing) * (1 - 1 / count);
        }
        return x.size() == 1 ? 0 : loss;
      });
}

inline FeatureReference reference_siglip(const FeatureCall& call, double scale, double bias) {
  return reference_of_pairs(
      call, scale, bias,
      [&](std::int64_t i, const std::vector<long double>& x, std::vector<long double>& slopes) {
        long double loss = 0;
        for (std::size_t j = 0; j < x.size(); ++j) {
          const long double y = static_cast<std::int64_t>(j) == i ? -1 : 1;
          loss += std::max(y * x[j], 0.0L) + std::log1p(std::exp(-std::abs(x[j])));
          slopes[j] = y / (1 + std::exp(-y * x[j]));
        }
        return loss;
      });
}

inline FeatureReference reference_sup_con(const FeatureCall& call, double scale) {
  const auto& labels = call.labels;
  const auto is_positive = [&](std::size_t i, std::size_t j) {
    return i != j && labels[i] == labels[j];
  };
  const auto count_of = [&](std::size_t i) {
    long double count = 0;
    for (std::size_t j = 0; j < labels.size(); ++j) count += is_positive(i, j) ? 1 : 0;
    return count;
  };
  auto counted = call;
  if (counted.weights.empty()) counted.weights.assign(call.labels.size(), 1);
  for (std::size_t i = 0; i < counted.weights.size(); ++i)
    if (count_of(i) == 0) counted.weights[i] = 0;
  FeatureReference out;
  out.anchors.resize(call.anchors.size());
  const auto weights = reference_weights(counted, 1);
  add_reference_terms(
      call.anchors, call.anchors, call.dims, weights, scale, 0,
      [&](std::int64_t row, const std::vector<long double>& x, std::vector<long double>& slopes) {
        const auto i = static_cast<std::size_t>(row);
        const auto count = count_of(i);
        std::fill(slopes.begin(), slopes.end(), 0.0L);
        if (count == 0) return 0.0L;
        const auto all = reference_log_sum(x, row);
        long double loss = 0;
        for (std::size_t j = 0; j < x.size(); ++j) {
          if (j == i) continue;
          slopes[j] = std::exp(x[j] - all);
          if (!is_positive(i, j)) continue;
          loss += (all - x[j]) / count;
          slopes[j] -= 1 / count;
        }
        return loss;
      },
      out, out.anchors, out.anchors);
  return out;
}

}  // namespace tutti::test
