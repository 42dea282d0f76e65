#include "internal/losses/soft_rank.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <numbers>

#include "internal/losses/radix_sort.hpp"
#include "internal/losses/soft_rank_kernels.hpp"

namespace tutti::internal::losses {
namespace {

constexpr double width = 2;  ///< Of a cell, in temperatures.
/// What rows out of reach add together is below this.
constexpr double neglected = 1e-14;
constexpr double everywhere = std::numeric_limits<double>::infinity();
/// Pools of fewer pairs are not worth sorting.
constexpr double few_pairs = 1 << 16;

using Matrix = std::array<double, terms * terms>;  // [source term][target term].

/// The Chebyshev series of f(u, v) on the square [-1, 1]^2, u the target's place and v the
/// source's.
template <typename F>
Matrix series_of(const F& f) {
  std::array<double, terms> node{};
  std::array<std::array<double, terms>, terms> t{};  // t[n][i] = T_n(node[i])
  for (std::size_t i = 0; i < terms; ++i) {
    const double angle = std::numbers::pi * (static_cast<double>(i) + 0.5) / terms;
    node[i] = std::cos(angle);
    for (std::size_t n = 0; n < terms; ++n) t[n][i] = std::cos(static_cast<double>(n) * angle);
  }
  std::array<std::array<double, terms>, terms> half{};  // [m][j]: a series in u at node j of v.
  for (std::size_t j = 0; j < terms; ++j)
    for (std::size_t i = 0; i < terms; ++i) {
      const double value = f(node[i], node[j]);
      for (std::size_t m = 0; m < terms; ++m)
        half[m][j] += t[m][i] * value * (m == 0 ? 1.0 : 2.0) / terms;
    }
  Matrix matrix{};
  for (std::size_t n = 0; n < terms; ++n)
    for (std::size_t m = 0; m < terms; ++m)
      for (std::size_t j = 0; j < terms; ++j)
        matrix[n * terms + m] += t[n][j] * half[m][j] * (n == 0 ? 1.0 : 2.0) / terms;
  return matrix;
}

/// How the moments of a cell act on the series of one that is `distance` cells below it. The same
/// for every pool.
struct Action {
  Matrix value;  ///< σ; of a cell above, σ - 1, so that errors are small where the numbers are.
  Matrix slope;  ///< σ'.
};

/// The matrix's own idea of how a row acts on itself, as a series in its place: T_m T_n is
/// (T_(m+n) + T_|m-n|) / 2. What is taken out again has to be what was put in, because next to an
/// isolated row nothing else is left.
class Self {
 public:
  explicit Self(const Matrix& matrix) {
    for (std::size_t n = 0; n < terms; ++n)
      for (std::size_t m = 0; m < terms; ++m) {
        series_[n + m] += matrix[n * terms + m] / 2;
        series_[n > m ? n - m : m - n] += matrix[n * terms + m] / 2;
      }
  }
  double operator()(double at) const {
    double b1 = 0;
    double b2 = 0;
    for (std::size_t n = series_.size() - 1; n > 0; --n) {
      const double b0 = series_[n] + 2 * at * b1 - b2;
      b2 = b1;
      b1 = b0;
    }
    return series_[0] + at * b1 - b2;
  }

 private:
  std::array<double, 2 * terms - 1> series_{};
};

/// Beyond: e^-64 is nothing beside 1 for any number of rows that fits in memory.
constexpr std::int64_t furthest = 32;

const Action& action(std::int64_t distance) {
  static const auto all = [] {
    std::vector<Action> made;
    for (std::int64_t d = -furthest; d <= furthest; ++d) {
      const auto x = [d](double u, double v) {
        return width * (static_cast<double>(d) + (v - u) / 2);
      };
      made.push_back({series_of([&](double u, double v) {
                        return d > 0 ? -1 / (1 + std::exp(x(u, v))) : 1 / (1 + std::exp(-x(u, v)));
                      }),
                      series_of([&](double u, double v) {
                        const double e = std::exp(-std::abs(x(u, v)));
                        return e / ((1 + e) * (1 + e));
                      })});
    }
    return made;
  }();
  return all[static_cast<std::size_t>(distance + furthest)];
}

const Self& own_value() {
  static const Self self(action(0).value);
  return self;
}
const Self& own_slope() {
  static const Self self(action(0).slope);
  return self;
}

}  // namespace

template <typename Score>
void SoftRank::sort_as(std::span<const double> scores) {
  struct Item {
    decltype(ordered_key(Score{})) key;
    std::uint32_t row;
  };
  std::vector<Item> items(scores.size());
  for (std::size_t i = 0; i < items.size(); ++i)  // -0 + 0 is 0: they are the same score.
    items[i] = {ordered_key(static_cast<Score>(scores[i]) + Score{0}),
                static_cast<std::uint32_t>(i)};
  radix_sort(items, [](const Item& item) { return item.key; });
  for (std::size_t i = 0; i < items.size(); ++i) {
    sorted_[i] = static_cast<double>(score_of(items[i].key));
    order_[i] = items[i].row;
  }
}

SoftRank::SoftRank(std::span<const double> scores, std::span<const std::uint8_t> positive,
                   double temperature, Engine engine)
    : temperature_(temperature), engine_(engine), sorted_(scores.size()), order_(scores.size()) {
  const bool floats = std::ranges::all_of(
      scores, [](double score) { return static_cast<double>(static_cast<float>(score)) == score; });
  if (floats)
    sort_as<float>(scores);  // Half the bytes to sort by.
  else
    sort_as<double>(scores);
  const auto count = positive.size() - static_cast<std::size_t>(std::ranges::count(positive, 0));
  anchors_.reserve(count);
  anchor_at_.reserve(count);
  for (std::size_t i = 0; i < sorted_.size(); ++i) {
    if (positive[order_[i]] == 0) continue;
    anchors_.push_back(sorted_[i]);
    anchor_at_.push_back(static_cast<std::uint32_t>(i));
  }
  reach_ = temperature *
           std::log(static_cast<double>(std::max<std::size_t>(sorted_.size(), 1)) / neglected);
  choose();
}

/// Fills work_; returns how many rows are in the windows of all anchors.
std::uint64_t SoftRank::measure_windows() {
  work_.reserve(anchors_.size() + 1);
  work_.push_back(0);
  std::size_t first = 0;
  std::size_t last = 0;
  for (const double anchor : anchors_) {
    while (sorted_[first] < anchor - reach_) ++first;
    while (last < sorted_.size() && sorted_[last] <= anchor + reach_) ++last;
    work_.push_back(work_.back() + (last - first));
  }
  return work_.back();
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
    measure_windows();
    return;
  }
  make_cells();
  if (!automatic) return;
  // Measured on x86-64 with AVX2: a matrix costs as much as 12 pairs, a row of a series as 2.
  double translations = 0;
  for (const auto& cell : cells_)
    translations += (cell.first_anchor != cell.last_anchor ? 4.0 : 0.0) *
                        static_cast<double>(cell.near_last - cell.near_first) +
                    2.0 * static_cast<double>(cell.near_last - cell.near_first);
  const double by_cells = 12 * translations + 2 * (4 * m + 6 * p);
  const double by_windows = 2 * static_cast<double>(measure_windows()) * (1 + p / m);
  engine_ = by_cells < by_windows ? Engine::cells : Engine::windows;
  if (engine_ == Engine::windows) {
    cells_ = {};
    moments_ = {};
  } else {
    work_ = {};
  }
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
  return 2 * (score - cell.begin) / (width * temperature_) - 1;
}

void SoftRank::places(std::span<const double> scores, const Cell& cell,
                      std::vector<double>& out) const {
  out.resize(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) out[i] = place(scores[i], cell);
}

void SoftRank::make_cells() {
  const double step = width * temperature_;
  const auto far =
      std::min<std::int64_t>(furthest, static_cast<std::int64_t>(std::ceil(reach_ / step)) + 1);
  // Behind a gap that nothing reaches across the cells begin anew: a place far from where they
  // began would lose its last digits, and there may be an outlier of -1e9.
  double origin = 0;
  std::int64_t base = 0;
  for (std::size_t i = 0; i < sorted_.size(); ++i) {
    const double score = sorted_[i];
    if (i == 0 || score - sorted_[i - 1] > static_cast<double>(far + 2) * step) {
      origin = score;
      base = cells_.empty() ? 0 : cells_.back().index + far + 2;
    }
    const double number = std::floor((score - origin) / step);
    const auto index = base + static_cast<std::int64_t>(number);
    if (cells_.empty() || cells_.back().index != index)
      cells_.push_back({.index = index, .begin = origin + number * step, .first = i});
    cells_.back().last = i + 1;
  }
  const auto& kernels = soft_rank_kernels();
  moments_.assign(cells_.size() * 2 * terms, 0);
  std::vector<double> at;
  std::size_t anchor = 0;
  std::size_t near_first = 0;
  std::size_t near_last = 0;
  for (std::size_t c = 0; c < cells_.size(); ++c) {
    auto& cell = cells_[c];
    cell.first_anchor = anchor;
    while (anchor < anchors_.size() && anchor_at_[anchor] < cell.last) ++anchor;
    cell.last_anchor = anchor;
    while (cells_[near_first].index < cell.index - far) ++near_first;
    while (near_last < cells_.size() && cells_[near_last].index <= cell.index + far) ++near_last;
    cell.near_first = near_first;
    cell.near_last = near_last;
    auto* moments = &moments_[c * 2 * terms];
    places(std::span(sorted_).subspan(cell.first, cell.last - cell.first), cell, at);
    kernels.moments(at.data(), nullptr, at.size(), moments);
    places(std::span(anchors_).subspan(cell.first_anchor, cell.last_anchor - cell.first_anchor),
           cell, at);
    kernels.moments(at.data(), nullptr, at.size(), moments + terms);
  }
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
    const auto within = [&](const std::vector<double>& all, double& value, double& slope) {
      const auto low = std::lower_bound(all.begin(), all.end(), at - reach);
      const auto high = std::upper_bound(low, all.end(), at + reach);
      double sums[2] = {};
      kernels.pairs(&*all.begin() + (low - all.begin()), static_cast<std::size_t>(high - low), at,
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
  for (const auto& cell : cells_) {
    const auto from = std::max(cell.first_anchor, first);
    const auto to = std::min(cell.last_anchor, last);
    if (from >= to) continue;
    std::array<std::array<double, terms>, 4> series{};
    for (auto c = cell.near_first; c < cell.near_last; ++c) {
      const auto& act = action(cells_[c].index - cell.index);
      const auto* moments = &moments_[c * 2 * terms];
      kernels.translate(act.value.data(), moments, series[0].data());
      kernels.translate(act.slope.data(), moments, series[2].data());
      if (cells_[c].first_anchor == cells_[c].last_anchor) continue;
      kernels.translate(act.value.data(), moments + terms, series[1].data());
      kernels.translate(act.slope.data(), moments + terms, series[3].data());
    }
    places(std::span(anchors_).subspan(from, to - from), cell, at);
    const auto above = static_cast<double>(sorted_.size() - cell.last);
    const auto anchors_above = static_cast<double>(anchors_.size() - cell.last_anchor);
    values.resize(4 * (to - from));
    for (std::size_t i = 0; i < 4; ++i)
      kernels.evaluate(at.data(), to - from, series[i].data(), &values[i * (to - from)]);
    for (std::size_t k = 0; k < to - from; ++k) {
      const auto value = [&](std::size_t i) { return values[i * (to - from) + k]; };
      const double self = own_value()(at[k]);
      const double self_slope = own_slope()(at[k]);
      out[from - first + k] = {1 + above + (value(0) - self), 1 + anchors_above + (value(1) - self),
                               value(2) - self_slope, value(3) - self_slope};
    }
  }
  return 4 * out.size();
}

void SoftRank::slopes(std::span<const double> a, std::span<const double> b,
                      std::span<const std::uint32_t> rows, std::span<Slopes> out) const {
  // Where in `out` a sorted row is wanted; a sweep over the pool then finds them in order.
  constexpr auto nowhere = ~std::uint32_t{0};
  std::vector<std::uint32_t> wanted(sorted_.size(), nowhere);
  for (std::size_t i = 0; i < rows.size(); ++i) wanted[rows[i]] = static_cast<std::uint32_t>(i);
  std::vector<std::uint32_t> slot(sorted_.size());
  for (std::size_t i = 0; i < slot.size(); ++i) slot[i] = wanted[order_[i]];
  const auto done =
      engine_ == Engine::cells
          ? slopes_by_cells(a, b, slot, out)
          : slopes_by_windows(a, b, slot, out, engine_ == Engine::windows ? reach_ : everywhere);
  std::atomic_ref(evaluations_).fetch_add(done, std::memory_order_relaxed);
}

std::uint64_t SoftRank::slopes_by_windows(std::span<const double> a, std::span<const double> b,
                                          std::span<const std::uint32_t> slot,
                                          std::span<Slopes> out, double reach) const {
  std::uint64_t evaluations = 0;
  const auto& kernels = soft_rank_kernels();
  const double scale = 1 / temperature_;
  std::size_t own = 0;  // The next anchor at or behind i.
  for (std::size_t i = 0; i < sorted_.size(); ++i) {
    const bool positive = own < anchors_.size() && anchor_at_[own] == i;
    const std::size_t self = positive ? own++ : 0;
    if (slot[i] >= out.size()) continue;
    const double at = sorted_[i];
    const auto low = std::lower_bound(anchors_.begin(), anchors_.end(), at - reach);
    const auto high = std::upper_bound(low, anchors_.end(), at + reach);
    const auto first = static_cast<std::size_t>(low - anchors_.begin());
    const auto count = static_cast<std::size_t>(high - low);
    auto& result = out[slot[i]];
    result = {};
    result.a = kernels.slopes(anchors_.data() + first, a.data() + first, count, at, scale);
    evaluations += count;
    if (!positive) continue;
    result.b = kernels.slopes(anchors_.data() + first, b.data() + first, count, at, scale) -
               0.25 * b[self];
    result.a -= 0.25 * a[self];
    evaluations += count;
  }
  return evaluations;
}

std::uint64_t SoftRank::slopes_by_cells(std::span<const double> a, std::span<const double> b,
                                        std::span<const std::uint32_t> slot,
                                        std::span<Slopes> out) const {
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
  std::uint64_t evaluations = 0;
  std::vector<std::size_t> targets;
  std::vector<double> scores;
  std::vector<double> values;
  for (const auto& cell : cells_) {
    targets.clear();
    scores.clear();
    for (auto i = cell.first; i < cell.last; ++i)
      if (slot[i] < out.size()) {
        targets.push_back(i);
        scores.push_back(sorted_[i]);
      }
    if (targets.empty()) continue;
    std::array<std::array<double, terms>, 2> series{};
    for (auto c = cell.near_first; c < cell.near_last; ++c) {
      if (cells_[c].first_anchor == cells_[c].last_anchor) continue;
      const auto& act = action(cells_[c].index - cell.index);
      for (std::size_t i = 0; i < 2; ++i)
        kernels.translate(act.slope.data(), &weighted[(c * 2 + i) * terms], series[i].data());
    }
    places(scores, cell, at);
    values.resize(2 * targets.size());
    for (std::size_t i = 0; i < 2; ++i)
      kernels.evaluate(at.data(), targets.size(), series[i].data(), &values[i * targets.size()]);
    evaluations += 2 * targets.size();
    auto own = cell.first_anchor;
    for (std::size_t t = 0; t < targets.size(); ++t) {
      auto& result = out[slot[targets[t]]];
      result = {values[t], 0};
      while (own < cell.last_anchor && anchor_at_[own] < targets[t]) ++own;
      if (own == cell.last_anchor || anchor_at_[own] != targets[t]) continue;
      const double self = own_slope()(at[t]);
      result.a -= self * a[own];
      result.b = values[targets.size() + t] - self * b[own];
    }
  }
  return evaluations;
}

}  // namespace tutti::internal::losses
