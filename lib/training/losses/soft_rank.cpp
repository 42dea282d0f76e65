#include "losses/soft_rank.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "losses/soft_rank_kernels.hpp"

namespace tutti::internal::losses {
namespace {

/// Upper bound of what rows beyond the reach add to a sum.
constexpr double neglected = 1e-14;
constexpr double everywhere = std::numeric_limits<double>::infinity();
/// For fewer pairs, sorting costs more than it saves.
constexpr double few_pairs = 1 << 16;

}  // namespace

SoftRank::SoftRank(std::span<const double> scores, std::span<const std::uint8_t> positive,
                   double temperature, Engine engine)
    : temperature_(temperature),
      engine_(engine),
      reach_(temperature *
             std::log(static_cast<double>(std::max<std::size_t>(scores.size(), 1)) / neglected)),
      pool_(scores, positive) {
  choose();
}

/// Fills work_ with the running totals of the rows in the anchors' windows. Returns false with an
/// empty work_ if the total exceeds `most`.
bool SoftRank::windows_within(double most) {
  work_.reserve(pool_.anchors.size() + 1);
  work_.push_back(0);
  std::size_t first = 0;
  std::size_t last = 0;
  for (const double anchor : pool_.anchors) {
    while (pool_.scores[first] < anchor - reach_) ++first;
    while (last < pool_.scores.size() && pool_.scores[last] <= anchor + reach_) ++last;
    work_.push_back(work_.back() + (last - first));
    if (static_cast<double>(work_.back()) <= most) continue;
    work_ = {};
    return false;
  }
  return true;
}

void SoftRank::choose() {
  const auto p = static_cast<double>(pool_.anchors.size());
  const auto m = static_cast<double>(pool_.scores.size());
  const bool automatic = engine_ == Engine::automatic;
  if (automatic && p * m <= few_pairs) engine_ = Engine::pairs;
  if (engine_ == Engine::pairs) reach_ = everywhere;
  if (engine_ == Engine::pairs || pool_.anchors.empty()) return;
  if (engine_ == Engine::windows) {
    windows_within(everywhere);
    return;
  }
  cells_.emplace(pool_, temperature_, reach_);
  if (automatic) {
    const double per_row = 2 * (1 + p / m);
    engine_ = windows_within(cells_->cost(pool_) / per_row) ? Engine::windows : Engine::cells;
  }
  if (engine_ == Engine::cells)
    cells_->make_moments(pool_);
  else
    cells_.reset();
}

std::pair<std::size_t, std::size_t> SoftRank::share(int rank, int ranks) const noexcept {
  const auto w = static_cast<std::size_t>(ranks);
  const auto r = static_cast<std::size_t>(rank);
  const auto begin = [&](std::size_t part) {
    if (work_.empty())
      return pool_.anchors.size() / w * part + std::min(part, pool_.anchors.size() % w);
    const auto before = work_.back() / w * part + std::min<std::uint64_t>(part, work_.back() % w);
    return static_cast<std::size_t>(std::ranges::lower_bound(work_, before) - work_.begin());
  };
  return {begin(r), begin(r + 1)};
}

void SoftRank::sums(std::size_t first, std::span<Sums> out) const {
  if (out.empty()) return;
  if (cells_)
    cells_->sums(pool_, first, out);
  else
    sums_by_windows(first, out);
}

void SoftRank::sums_by_windows(std::size_t first, std::span<Sums> out) const {
  const auto& kernels = soft_rank_kernels();
  const double scale = 1 / temperature_;
  for (std::size_t k = 0; k < out.size(); ++k) {
    const double at = pool_.anchors[first + k];
    // The window is at ± reach_. Above it σ is taken as 1, below it as 0. The anchor's own term
    // (σ(0) = 0.5, σ'(0) = 0.25) is subtracted.
    const auto within = [&](std::span<const double> all, double& value, double& slope) {
      const auto low = std::lower_bound(all.begin(), all.end(), at - reach_);
      const auto high = std::upper_bound(low, all.end(), at + reach_);
      double sums[2] = {};
      kernels.pairs(all.data() + (low - all.begin()), static_cast<std::size_t>(high - low), at,
                    scale, sums);
      value = 1 + static_cast<double>(all.end() - high) + (sums[0] - 0.5);
      slope = sums[1] - 0.25;
    };
    within(pool_.scores, out[k].a, out[k].d);
    within(pool_.anchors, out[k].b, out[k].e);
  }
}

void SoftRank::slopes(std::span<const double> a, std::span<const double> b,
                      std::span<const std::uint32_t> rows, std::span<Slopes> out) const {
  const WantedRows slot(rows, pool_.scores.size());
  if (cells_)
    cells_->slopes(pool_, a, b, slot, out);
  else
    slopes_by_windows(a, b, slot, out);
}

void SoftRank::slopes_by_windows(std::span<const double> a, std::span<const double> b,
                                 const WantedRows& slot, std::span<Slopes> out) const {
  const auto& kernels = soft_rank_kernels();
  const double scale = 1 / temperature_;
  std::size_t own = 0;  // The next anchor at or after i.
  for (std::size_t i = 0; i < pool_.scores.size(); ++i) {
    const bool positive = own < pool_.anchors.size() && pool_.anchor_at[own] == i;
    const std::size_t self = positive ? own++ : 0;
    const auto wanted = slot(pool_.rows[i]);
    if (wanted >= out.size()) continue;
    const double at = pool_.scores[i];
    const auto low = std::lower_bound(pool_.anchors.begin(), pool_.anchors.end(), at - reach_);
    const auto high = std::upper_bound(low, pool_.anchors.end(), at + reach_);
    const auto first = static_cast<std::size_t>(low - pool_.anchors.begin());
    const auto count = static_cast<std::size_t>(high - low);
    double sums[2] = {};
    kernels.slopes(pool_.anchors.data() + first, a.data() + first,
                   positive ? b.data() + first : nullptr, count, at, scale, sums);
    // Subtracts the term of the anchor itself, σ'(0) = 0.25.
    out[wanted] =
        positive ? Slopes{sums[0] - 0.25 * a[self], sums[1] - 0.25 * b[self]} : Slopes{sums[0], 0};
  }
}

}  // namespace tutti::internal::losses
