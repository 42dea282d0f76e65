#include "losses/soft_rank_cells.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "losses/soft_rank_expansion.hpp"
#include "losses/soft_rank_kernels.hpp"

namespace tutti::internal::losses {

SoftRankCells::SoftRankCells(const SortedPool& pool, double temperature, double reach)
    : temperature_(temperature) {
  const double step = cell_width * temperature;
  const double gap = reach + 3 * step;
  // After a gap wider than the reach, cells start at a new origin: a position far from its origin
  // would lose its last digits, for example at an outlier of -1e9.
  double origin = 0;
  double end =
      -std::numeric_limits<double>::infinity();  // End of the last cell, counted from its origin.
  std::int64_t base = 0;
  for (std::size_t i = 0; i < pool.scores.size(); ++i) {
    const double score = pool.scores[i];
    if (score - origin < end) continue;
    if (i == 0 || score - pool.scores[i - 1] > gap) {
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
  cells_.back().last = pool.scores.size();
  std::size_t anchor = 0;
  std::size_t near_first = 0;
  std::size_t near_last = 0;
  for (auto& cell : cells_) {
    cell.first_anchor = anchor;
    while (anchor < pool.anchors.size() && pool.anchor_at[anchor] < cell.last) ++anchor;
    cell.last_anchor = anchor;
    while (cells_[near_first].index < cell.index - near) ++near_first;
    while (near_last < cells_.size() && cells_[near_last].index <= cell.index + near) ++near_last;
    cell.near_first = near_first;
    cell.near_last = near_last;
  }
}

double SoftRankCells::cost(const SortedPool& pool) const {
  // Costs in pairs, measured on x86-64 with AVX-512: 8 for a matrix, 2 for a row of a series. The
  // rest of a cell costs as much as four matrices of each kind.
  double matrices = 0;
  for (const auto& cell : cells_)
    matrices += (cell.first_anchor != cell.last_anchor ? 6.0 : 1.0) *
                static_cast<double>(cell.near_last - cell.near_first + 4);
  const auto rows = static_cast<double>(pool.scores.size());
  const auto anchors = static_cast<double>(pool.anchors.size());
  return 8 * matrices + 2 * (4 * rows + 6 * anchors);
}

double SoftRankCells::position(double score, const Cell& cell) const noexcept {
  // Both differences are between close numbers, so the position in the cell keeps its digits even
  // for scores far from 0.
  return (score - cell.origin - cell.begin) * (2 / (cell_width * temperature_)) - 1;
}

void SoftRankCells::positions(std::span<const double> scores, const Cell& cell,
                              std::vector<double>& out) const {
  out.resize(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) out[i] = position(scores[i], cell);
}

void SoftRankCells::make_moments(const SortedPool& pool) {
  const auto& kernels = soft_rank_kernels();
  moments_.assign(cells_.size() * 2 * terms, 0);
  std::vector<double> at;
  for (std::size_t c = 0; c < cells_.size(); ++c) {
    const auto& cell = cells_[c];
    auto* moments = &moments_[c * 2 * terms];
    positions(std::span(pool.scores).subspan(cell.first, cell.last - cell.first), cell, at);
    kernels.moments(at.data(), nullptr, at.size(), moments);
    positions(
        std::span(pool.anchors).subspan(cell.first_anchor, cell.last_anchor - cell.first_anchor),
        cell, at);
    kernels.moments(at.data(), nullptr, at.size(), moments + terms);
  }
  far_ = far_sums(moments_);
}

std::vector<double> SoftRankCells::far_sums(const std::vector<double>& moments) const {
  const auto& kernels = soft_rank_kernels();
  std::vector<double> own(moments.size());
  for (std::size_t i = 0; i < own.size(); i += terms)
    kernels.translate(far_field().gather.data(), &moments[i], &own[i]);
  std::vector<double> sums(moments.size());
  for (const bool upwards : {true, false}) {
    const std::size_t side = upwards ? 0 : exponentials;
    std::array<std::array<double, exponentials>, 2> carried{};  // Of rows and of anchors.
    std::size_t next = 0;  // The next cell to add to `carried`.
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

void SoftRankCells::sums(const SortedPool& pool, std::size_t first,
                         std::span<SoftRankSums> out) const {
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
    positions(std::span(pool.anchors).subspan(from, count), cell, at);
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
    const auto above = static_cast<double>(pool.scores.size() - cell.last);
    const auto anchors_above = static_cast<double>(pool.anchors.size() - cell.last_anchor);
    for (std::size_t k = 0; k < count; ++k)
      out[from - first + k] = {1 + above + (a[k] - self[k]), 1 + anchors_above + (b[k] - self[k]),
                               d[k] - self_slope[k], e[k] - self_slope[k]};
  }
}

void SoftRankCells::slopes(const SortedPool& pool, std::span<const double> a,
                           std::span<const double> b, const WantedRows& slot,
                           std::span<SoftRankSlopes> out) const {
  const auto& kernels = soft_rank_kernels();
  std::vector<double> at;
  std::vector<double> weighted(cells_.size() * 2 * terms);
  for (std::size_t c = 0; c < cells_.size(); ++c) {
    const auto& cell = cells_[c];
    const auto count = cell.last_anchor - cell.first_anchor;
    positions(std::span(pool.anchors).subspan(cell.first_anchor, count), cell, at);
    kernels.moments(at.data(), a.data() + cell.first_anchor, count, &weighted[c * 2 * terms]);
    kernels.moments(at.data(), b.data() + cell.first_anchor, count,
                    &weighted[c * 2 * terms + terms]);
  }
  const auto far = far_sums(weighted);
  struct Own {
    std::size_t anchor;
    std::uint32_t wanted;
  };
  std::vector<Own> own;  // Targets that are anchors.
  std::vector<double> own_at;
  std::vector<std::uint32_t> targets;
  std::vector<std::size_t> target_at;
  std::vector<double> values;
  for (std::size_t target = 0; target < cells_.size(); ++target) {
    const auto& cell = cells_[target];
    // The next loop has no branch: which rows belong to this rank is unpredictable.
    targets.resize(cell.last - cell.first + 1);
    target_at.resize(targets.size());
    std::size_t count = 0;
    for (auto i = cell.first; i < cell.last; ++i) {
      targets[count] = slot(pool.rows[i]);
      target_at[count] = i;
      count += static_cast<std::size_t>(targets[count] < out.size());
    }
    if (count == 0) continue;
    targets.resize(count);
    at.resize(count);
    for (std::size_t t = 0; t < count; ++t) at[t] = position(pool.scores[target_at[t]], cell);
    own.clear();
    own_at.clear();
    for (auto k = cell.first_anchor; k < cell.last_anchor; ++k) {
      const auto wanted = slot(pool.rows[pool.anchor_at[k]]);
      if (wanted >= out.size()) continue;
      own.push_back({k, wanted});
      own_at.push_back(position(pool.anchors[k], cell));
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
}

}  // namespace tutti::internal::losses
