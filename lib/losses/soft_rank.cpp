#include "losses/soft_rank.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numbers>
#include <utility>

#include "losses/soft_rank_kernels.hpp"

namespace tutti::internal::losses {
namespace {

constexpr double width = 2;  ///< Of a cell, in temperatures.
/// What rows out of reach add together is below this.
constexpr double neglected = 1e-14;
constexpr double everywhere = std::numeric_limits<double>::infinity();
/// Pools of fewer pairs are not worth sorting.
constexpr double few_pairs = 1 << 16;

using Series = std::array<double, terms>;
using Matrix = std::array<double, terms * terms>;  // [source term][target term].

/// Where a series is fitted: the zeros of T_terms.
const Series& nodes() {
  static const auto all = [] {
    Series made{};
    for (std::size_t i = 0; i < terms; ++i)
      made[i] = std::cos(std::numbers::pi * (static_cast<double>(i) + 0.5) / terms);
    return made;
  }();
  return all;
}

/// The Chebyshev series with these values at the nodes.
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

/// The Chebyshev series of f(u, v) on the square [-1, 1]^2, u the target's place and v the
/// source's.
template <typename F>
Matrix matrix_of(const F& f) {
  std::array<Series, terms> at_node{};  // [j]: a series in u, at node j of v.
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

/// How the moments of a cell act on the series of one that is `distance` cells below it. The same
/// for every pool.
struct Action {
  Matrix value;  ///< σ; of a cell above, σ - 1, so that errors are small where the numbers are.
  Matrix slope;  ///< σ'.
};

/// Cells at this distance or less act by a matrix of their own.
constexpr std::int64_t near = 3;

const Action& action(std::int64_t distance) {
  static const auto all = [] {
    std::vector<Action> made;
    for (std::int64_t d = -near; d <= near; ++d) {
      const auto x = [d](double u, double v) {
        return width * (static_cast<double>(d) + (v - u) / 2);
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

/// Further cells are three empty cells or more away, and there σ(-x) is the sum over i >= 1 of
/// -(-1)^i e^(-ix): eight terms are worth e^-54. A term is a product of the source's part, the
/// distance's and the target's, so that all cells on one side act together: as sums of
/// exponentials, first the eight of the cells below, then those of the cells above.
constexpr std::size_t exponentials = terms / 2;

struct Far {
  Matrix gather;  ///< From the moments of a cell to its sums of exponentials.
  Matrix value;   ///< From sums of exponentials to a series.
  Matrix slope;
};

const Far& far_field() {
  static const Far made = [] {
    Far all{};
    for (std::size_t k = 0; k < terms; ++k) {
      const bool below = k < exponentials;
      const auto i = static_cast<double>(below ? k + 1 : k + 1 - exponentials);
      const double rate = (below ? width : -width) / 2 * i;
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

/// e^-64 is nothing beside 1 for any number of rows that fits in memory.
constexpr std::int64_t furthest = 32;

/// What is left of each exponential `distance` cells further.
const std::array<double, exponentials>& decay(std::int64_t distance) {
  static const auto all = [] {
    std::array<std::array<double, exponentials>, furthest + 2> made{};  // The last ones are 0.
    for (std::size_t d = 0; d + 1 < made.size(); ++d)
      for (std::size_t i = 0; i < exponentials; ++i)
        made[d][i] = std::exp(-width * static_cast<double>(d) * static_cast<double>(i + 1));
    return made;
  }();
  return all[static_cast<std::size_t>(std::min(distance, furthest + 1))];
}

/// The matrix's own idea of how a row acts on itself, as a series in its place: T_m T_n is
/// (T_(m+n) + T_|m-n|) / 2. What is taken out again has to be what was put in, because next to an
/// isolated row nothing else is left.
using Self = std::array<double, 2 * terms - 1>;

Self self_of(const Matrix& matrix) {
  Self series{};
  for (std::size_t n = 0; n < terms; ++n)
    for (std::size_t m = 0; m < terms; ++m) {
      series[n + m] += matrix[n * terms + m] / 2;
      series[n > m ? n - m : m - n] += matrix[n * terms + m] / 2;
    }
  return series;
}
const Self& own_value() {
  static const Self self = self_of(action(0).value);
  return self;
}
const Self& own_slope() {
  static const Self self = self_of(action(0).slope);
  return self;
}

}  // namespace

/// Fills sorted_, order_ and the anchors. False, and nothing done, if not every score is a Score.
template <typename Score>
bool SoftRank::sort_as(std::span<const double> scores, std::span<const std::uint8_t> positive) {
  struct Item {
    decltype(ordered_key(Score{})) key;
    std::uint32_t row;  // The highest bit: positive. It travels along, to be read in order.
  };
  constexpr std::uint32_t highest = std::uint32_t{1} << 31;
  Raw<Item> items(scores.size());
  bool rounded = false;
  std::size_t anchors = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto score = static_cast<Score>(scores[i]);
    rounded |= static_cast<double>(score) != scores[i];
    const std::uint32_t is_positive = positive[i] != 0 ? 1 : 0;
    anchors += is_positive;
    // -0 + 0 is 0: they are the same score.
    items[i] = {ordered_key(score + Score{0}), static_cast<std::uint32_t>(i) | is_positive << 31};
  }
  if (rounded) return false;
  radix_sort(items, [](const Item& item) { return item.key; });
  sorted_.resize(items.size());
  order_.resize(items.size());
  anchor_at_.resize(anchors + 1);  // Room for a row behind the last anchor: no branch to foresee.
  std::size_t next = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    sorted_[i] = static_cast<double>(score_of(items[i].key));
    order_[i] = items[i].row & ~highest;
    anchor_at_[next] = static_cast<std::uint32_t>(i);
    next += items[i].row >> 31;
  }
  anchor_at_.pop_back();
  anchors_.resize(anchors);
  for (std::size_t k = 0; k < anchors; ++k) anchors_[k] = sorted_[anchor_at_[k]];
  return true;
}

/// Where in a list of rows a row is, so that a sweep over the sorted pool finds them in order. Of
/// rows that are not in it: behind its end. A run of rows needs no table.
class SoftRank::Wanted {
 public:
  Wanted(std::span<const std::uint32_t> rows, std::size_t pool) {
    if (rows.empty()) return;
    first_ = rows.front();
    std::size_t run = 1;
    while (run < rows.size() && rows[run] == first_ + run) ++run;
    if (run == rows.size()) return;
    table_.assign(pool, ~std::uint32_t{0});
    for (std::size_t i = 0; i < rows.size(); ++i) table_[rows[i]] = static_cast<std::uint32_t>(i);
  }
  std::uint32_t operator()(std::uint32_t row) const noexcept {
    return table_.empty() ? row - first_ : table_[row];  // Below first_ the difference is huge.
  }

 private:
  std::uint32_t first_ = 0;
  std::vector<std::uint32_t> table_;
};

SoftRank::SoftRank(std::span<const double> scores, std::span<const std::uint8_t> positive,
                   double temperature, Engine engine)
    : temperature_(temperature), engine_(engine) {
  // Floats have half the bytes.
  if (!sort_as<float>(scores, positive)) sort_as<double>(scores, positive);
  reach_ = temperature *
           std::log(static_cast<double>(std::max<std::size_t>(sorted_.size(), 1)) / neglected);
  choose();
}

/// Fills work_, unless the windows of all anchors have more rows than this.
bool SoftRank::windows_within(double most) {
  work_.reserve(anchors_.size() + 1);
  work_.push_back(0);
  std::size_t first = 0;
  std::size_t last = 0;
  for (const double anchor : anchors_) {
    while (sorted_[first] < anchor - reach_) ++first;
    while (last < sorted_.size() && sorted_[last] <= anchor + reach_) ++last;
    work_.push_back(work_.back() + (last - first));
    if (static_cast<double>(work_.back()) <= most) continue;
    work_ = {};
    return false;
  }
  return true;
}

void SoftRank::choose() {
  const auto p = static_cast<double>(anchors_.size());
  const auto m = static_cast<double>(sorted_.size());
  const bool automatic = engine_ == Engine::automatic;
  if (automatic && p * m <= few_pairs) engine_ = Engine::pairs;
  if (engine_ == Engine::pairs || anchors_.empty()) {
    if (automatic) engine_ = Engine::pairs;
    return;
  }
  if (engine_ == Engine::windows) {
    windows_within(everywhere);
    return;
  }
  make_cells();
  if (automatic) {
    // Measured on x86-64 with AVX-512: a matrix costs as much as 8 pairs, a row of a series as 2,
    // and what else a cell needs as four matrices of each kind.
    double matrices = 0;
    for (const auto& cell : cells_)
      matrices += (cell.first_anchor != cell.last_anchor ? 6.0 : 1.0) *
                  static_cast<double>(cell.near_last - cell.near_first + 4);
    const double by_cells = 8 * matrices + 2 * (4 * m + 6 * p);
    const double per_row = 2 * (1 + p / m);
    engine_ = windows_within(by_cells / per_row) ? Engine::windows : Engine::cells;
  }
  if (engine_ == Engine::cells)
    make_moments();
  else
    cells_ = {};
}

std::pair<std::size_t, std::size_t> SoftRank::share(int rank, int ranks) const noexcept {
  const auto w = static_cast<std::size_t>(ranks);
  const auto r = static_cast<std::size_t>(rank);
  const auto begin = [&](std::size_t part) {
    if (work_.empty()) return anchors_.size() / w * part + std::min(part, anchors_.size() % w);
    const auto before = work_.back() / w * part + std::min<std::uint64_t>(part, work_.back() % w);
    return static_cast<std::size_t>(std::ranges::lower_bound(work_, before) - work_.begin());
  };
  return {begin(r), begin(r + 1)};
}

double SoftRank::place(double score, const Cell& cell) const noexcept {
  // Both differences are of numbers near each other: what is in the cell is exact, also where
  // scores are far from 0.
  return (score - cell.origin - cell.begin) * (2 / (width * temperature_)) - 1;
}

void SoftRank::places(std::span<const double> scores, const Cell& cell,
                      std::vector<double>& out) const {
  out.resize(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) out[i] = place(scores[i], cell);
}

void SoftRank::make_cells() {
  const double step = width * temperature_;
  const double gap = reach_ + 3 * step;
  // Behind a gap that nothing reaches across the cells begin anew: a place far from where they
  // began would lose its last digits, and there may be an outlier of -1e9.
  double origin = 0;
  double end = -everywhere;  // Of the last cell, above its origin.
  std::int64_t base = 0;
  for (std::size_t i = 0; i < sorted_.size(); ++i) {
    const double score = sorted_[i];
    if (score - origin < end) continue;
    if (i == 0 || score - sorted_[i - 1] > gap) {
      origin = score;
      base = cells_.empty() ? 0 : cells_.back().index + furthest + 1;
    }
    const double number = std::floor((score - origin) / step);
    const auto index = base + static_cast<std::int64_t>(number);
    if (!cells_.empty() && cells_.back().index == index) continue;
    if (!cells_.empty()) cells_.back().last = i;
    cells_.push_back({.index = index, .origin = origin, .begin = number * step, .first = i});
    end = (number + 1) * step;
  }
  cells_.back().last = sorted_.size();
  std::size_t anchor = 0;
  std::size_t near_first = 0;
  std::size_t near_last = 0;
  for (auto& cell : cells_) {
    cell.first_anchor = anchor;
    while (anchor < anchors_.size() && anchor_at_[anchor] < cell.last) ++anchor;
    cell.last_anchor = anchor;
    while (cells_[near_first].index < cell.index - near) ++near_first;
    while (near_last < cells_.size() && cells_[near_last].index <= cell.index + near) ++near_last;
    cell.near_first = near_first;
    cell.near_last = near_last;
  }
}

void SoftRank::make_moments() {
  const auto& kernels = soft_rank_kernels();
  moments_.assign(cells_.size() * 2 * terms, 0);
  std::vector<double> at;
  for (std::size_t c = 0; c < cells_.size(); ++c) {
    const auto& cell = cells_[c];
    auto* moments = &moments_[c * 2 * terms];
    places(std::span(sorted_).subspan(cell.first, cell.last - cell.first), cell, at);
    kernels.moments(at.data(), nullptr, at.size(), moments);
    places(std::span(anchors_).subspan(cell.first_anchor, cell.last_anchor - cell.first_anchor),
           cell, at);
    kernels.moments(at.data(), nullptr, at.size(), moments + terms);
  }
  far_ = far_sums(moments_);
}

std::vector<double> SoftRank::far_sums(const std::vector<double>& moments) const {
  const auto& kernels = soft_rank_kernels();
  std::vector<double> own(moments.size());
  for (std::size_t i = 0; i < own.size(); i += terms)
    kernels.translate(far_field().gather.data(), &moments[i], &own[i]);
  std::vector<double> sums(moments.size());
  for (const bool upwards : {true, false}) {
    const std::size_t side = upwards ? 0 : exponentials;
    std::array<std::array<double, exponentials>, 2> carried{};  // Of both kinds of moments.
    std::size_t next = 0;  // The cells before this one, as the sweep goes, are carried.
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      const auto at = [&](std::size_t j) { return upwards ? j : cells_.size() - 1 - j; };
      const auto distance = [&](std::size_t j) {
        return std::abs(cells_[at(i)].index - cells_[at(j)].index);
      };
      const auto& left = decay(i == 0 ? 0 : distance(i - 1));
      for (auto& kind : carried)
        for (std::size_t k = 0; k < exponentials; ++k) kind[k] *= left[k];
      for (; distance(next) > near; ++next) {
        const auto& part = decay(distance(next));
        for (std::size_t kind = 0; kind < 2; ++kind)
          for (std::size_t k = 0; k < exponentials; ++k)
            carried[kind][k] += part[k] * own[(at(next) * 2 + kind) * terms + side + k];
      }
      for (std::size_t kind = 0; kind < 2; ++kind)
        std::ranges::copy(carried[kind], &sums[(at(i) * 2 + kind) * terms + side]);
    }
  }
  return sums;
}

std::uint64_t SoftRank::evaluations() const noexcept {
  return std::atomic_ref(evaluations_).load(std::memory_order_relaxed);
}

void SoftRank::sums(std::size_t first, std::span<Sums> out) const {
  if (out.empty()) return;
  const auto done =
      engine_ == Engine::cells
          ? sums_by_cells(first, out)
          : sums_by_windows(first, out, engine_ == Engine::windows ? reach_ : everywhere);
  std::atomic_ref(evaluations_).fetch_add(done, std::memory_order_relaxed);
}

std::uint64_t SoftRank::sums_by_windows(std::size_t first, std::span<Sums> out,
                                        double reach) const {
  std::uint64_t evaluations = 0;
  const auto& kernels = soft_rank_kernels();
  const double scale = 1 / temperature_;
  for (std::size_t k = 0; k < out.size(); ++k) {
    const double at = anchors_[first + k];
    // A row or anchor counts as 1 above the window and as 0 below; the anchor itself, which is σ(0)
    // and σ'(0), does not count.
    const auto within = [&](std::span<const double> all, double& value, double& slope) {
      const auto low = std::lower_bound(all.begin(), all.end(), at - reach);
      const auto high = std::upper_bound(low, all.end(), at + reach);
      double sums[2] = {};
      kernels.pairs(all.data() + (low - all.begin()), static_cast<std::size_t>(high - low), at,
                    scale, sums);
      value = 1 + static_cast<double>(all.end() - high) + (sums[0] - 0.5);
      slope = sums[1] - 0.25;
      evaluations += static_cast<std::uint64_t>(high - low);
    };
    within(sorted_, out[k].a, out[k].d);
    within(anchors_, out[k].b, out[k].e);
  }
  return evaluations;
}

std::uint64_t SoftRank::sums_by_cells(std::size_t first, std::span<Sums> out) const {
  const auto& kernels = soft_rank_kernels();
  const auto last = first + out.size();
  std::vector<double> at;
  std::vector<double> values;
  for (std::size_t target = 0; target < cells_.size(); ++target) {
    const auto& cell = cells_[target];
    const auto from = std::max(cell.first_anchor, first);
    const auto to = std::min(cell.last_anchor, last);
    if (from >= to) continue;
    Series value{};  // Of all rows.
    Series slope{};
    Series anchors_value{};
    Series anchors_slope{};
    const auto act = [&](const Matrix& by_value, const Matrix& by_slope, const double* sources,
                         bool anchors) {
      kernels.translate(by_value.data(), sources, value.data());
      kernels.translate(by_slope.data(), sources, slope.data());
      if (!anchors) return;
      kernels.translate(by_value.data(), sources + terms, anchors_value.data());
      kernels.translate(by_slope.data(), sources + terms, anchors_slope.data());
    };
    for (auto c = cell.near_first; c < cell.near_last; ++c) {
      const auto& matrices = action(cells_[c].index - cell.index);
      act(matrices.value, matrices.slope, &moments_[c * 2 * terms],
          cells_[c].first_anchor != cells_[c].last_anchor);
    }
    act(far_field().value, far_field().slope, &far_[target * 2 * terms], true);

    const auto count = to - from;
    places(std::span(anchors_).subspan(from, count), cell, at);
    values.resize(6 * count);
    double* next = values.data();
    const auto evaluate = [&](std::span<const double> series) {
      kernels.evaluate(at.data(), count, series.data(), series.size(), next);
      return std::exchange(next, next + count);
    };
    const double* a = evaluate(value);
    const double* b = evaluate(anchors_value);
    const double* d = evaluate(slope);
    const double* e = evaluate(anchors_slope);
    const double* self = evaluate(own_value());
    const double* self_slope = evaluate(own_slope());
    const auto above = static_cast<double>(sorted_.size() - cell.last);
    const auto anchors_above = static_cast<double>(anchors_.size() - cell.last_anchor);
    for (std::size_t k = 0; k < count; ++k)
      out[from - first + k] = {1 + above + (a[k] - self[k]), 1 + anchors_above + (b[k] - self[k]),
                               d[k] - self_slope[k], e[k] - self_slope[k]};
  }
  return 4 * out.size();
}

void SoftRank::slopes(std::span<const double> a, std::span<const double> b,
                      std::span<const std::uint32_t> rows, std::span<Slopes> out) const {
  const Wanted slot(rows, sorted_.size());
  const auto done =
      engine_ == Engine::cells
          ? slopes_by_cells(a, b, slot, out)
          : slopes_by_windows(a, b, slot, out, engine_ == Engine::windows ? reach_ : everywhere);
  std::atomic_ref(evaluations_).fetch_add(done, std::memory_order_relaxed);
}

std::uint64_t SoftRank::slopes_by_windows(std::span<const double> a, std::span<const double> b,
                                          const Wanted& slot, std::span<Slopes> out,
                                          double reach) const {
  std::uint64_t evaluations = 0;
  const auto& kernels = soft_rank_kernels();
  const double scale = 1 / temperature_;
  std::size_t own = 0;  // The next anchor at or behind i.
  for (std::size_t i = 0; i < sorted_.size(); ++i) {
    const bool positive = own < anchors_.size() && anchor_at_[own] == i;
    const std::size_t self = positive ? own++ : 0;
    const auto wanted = slot(order_[i]);
    if (wanted >= out.size()) continue;
    const double at = sorted_[i];
    const auto low = std::lower_bound(anchors_.begin(), anchors_.end(), at - reach);
    const auto high = std::upper_bound(low, anchors_.end(), at + reach);
    const auto first = static_cast<std::size_t>(low - anchors_.begin());
    const auto count = static_cast<std::size_t>(high - low);
    double sums[2] = {};
    kernels.slopes(anchors_.data() + first, a.data() + first, positive ? b.data() + first : nullptr,
                   count, at, scale, sums);
    evaluations += count;
    // An anchor itself, which is σ'(0), does not count.
    out[wanted] =
        positive ? Slopes{sums[0] - 0.25 * a[self], sums[1] - 0.25 * b[self]} : Slopes{sums[0], 0};
  }
  return evaluations;
}

std::uint64_t SoftRank::slopes_by_cells(std::span<const double> a, std::span<const double> b,
                                        const Wanted& slot, std::span<Slopes> out) const {
  const auto& kernels = soft_rank_kernels();
  std::vector<double> at;
  std::vector<double> weighted(cells_.size() * 2 * terms);
  for (std::size_t c = 0; c < cells_.size(); ++c) {
    const auto& cell = cells_[c];
    const auto count = cell.last_anchor - cell.first_anchor;
    places(std::span(anchors_).subspan(cell.first_anchor, count), cell, at);
    kernels.moments(at.data(), a.data() + cell.first_anchor, count, &weighted[c * 2 * terms]);
    kernels.moments(at.data(), b.data() + cell.first_anchor, count,
                    &weighted[c * 2 * terms + terms]);
  }
  const auto far = far_sums(weighted);
  struct Own {
    std::size_t anchor;
    std::uint32_t wanted;
  };
  std::vector<Own> own;  // The targets that are anchors themselves.
  std::vector<double> own_at;
  std::vector<std::uint32_t> targets;
  std::vector<std::size_t> target_at;
  std::vector<double> values;
  std::uint64_t evaluations = 0;
  for (std::size_t target = 0; target < cells_.size(); ++target) {
    const auto& cell = cells_[target];
    // No branch that nobody can foresee: half of the rows may be another's.
    targets.resize(cell.last - cell.first + 1);
    target_at.resize(targets.size());
    std::size_t count = 0;
    for (auto i = cell.first; i < cell.last; ++i) {
      targets[count] = slot(order_[i]);
      target_at[count] = i;
      count += static_cast<std::size_t>(targets[count] < out.size());
    }
    if (count == 0) continue;
    targets.resize(count);
    at.resize(count);
    for (std::size_t t = 0; t < count; ++t) at[t] = place(sorted_[target_at[t]], cell);
    own.clear();
    own_at.clear();
    for (auto k = cell.first_anchor; k < cell.last_anchor; ++k) {
      const auto wanted = slot(row(k));
      if (wanted >= out.size()) continue;
      own.push_back({k, wanted});
      own_at.push_back(place(anchors_[k], cell));
    }
    Series by_a{};
    Series by_b{};
    const auto act = [&](const Matrix& matrix, const double* sources) {
      kernels.translate(matrix.data(), sources, by_a.data());
      if (!own.empty()) kernels.translate(matrix.data(), sources + terms, by_b.data());
    };
    for (auto c = cell.near_first; c < cell.near_last; ++c)
      if (cells_[c].first_anchor != cells_[c].last_anchor)
        act(action(cells_[c].index - cell.index).slope, &weighted[c * 2 * terms]);
    act(far_field().slope, &far[target * 2 * terms]);

    values.resize(targets.size());
    kernels.evaluate(at.data(), at.size(), by_a.data(), terms, values.data());
    for (std::size_t t = 0; t < targets.size(); ++t) out[targets[t]] = {values[t], 0};
    evaluations += targets.size();
    if (own.empty()) continue;
    values.resize(2 * own.size());
    double* self = &values[own.size()];
    kernels.evaluate(own_at.data(), own.size(), by_b.data(), terms, values.data());
    kernels.evaluate(own_at.data(), own.size(), own_slope().data(), own_slope().size(), self);
    for (std::size_t k = 0; k < own.size(); ++k) {
      auto& result = out[own[k].wanted];
      result.a -= self[k] * a[own[k].anchor];
      result.b = values[k] - self[k] * b[own[k].anchor];
    }
  }
  return evaluations;
}

}  // namespace tutti::internal::losses
