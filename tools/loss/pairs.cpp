#include "loss/pairs.hpp"

#include <algorithm>
#include <cmath>

#include <tutti/losses/loss.hpp>

#include "common/processor_time.hpp"

namespace tutti::tool {
namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// Calls `anchor` for one row after another until the limit.
template <typename Anchor>
void run(PairLoop& loop, std::span<const std::size_t> rows, std::chrono::nanoseconds limit,
         Anchor anchor) {
  loop.anchors = static_cast<std::int64_t>(rows.size());
  const auto start = thread_processor_time();
  bool goes_on = false;
  for (const std::size_t row : rows) {
    anchor(row);
    ++loop.done;
    loop.time = thread_processor_time() - start;
    if (goes_on || loop.time < limit / 5) continue;
    if (loop.time / loop.done > limit / loop.anchors) return;
    goes_on = true;
  }
}

std::vector<std::size_t> rows_with(std::span<const std::uint8_t> positive) {
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < positive.size(); ++i)
    if (positive[i] != 0) rows.push_back(i);
  return rows;
}

/// The valid rows of the call, and as many rows before them as the queue holds.
std::vector<std::int64_t> pool_rows(const LossProblem& problem, std::int64_t call) {
  const auto counts = [&](std::int64_t row) {
    return target_of(problem, row) != losses::default_ignore_index;
  };
  std::vector<std::int64_t> rows;
  const std::int64_t first = call * problem.rows;
  for (std::int64_t row = first; row < first + problem.rows; ++row)
    if (counts(row)) rows.push_back(row);
  std::int64_t queued = 0;
  for (std::int64_t row = first - 1; row >= 0 && queued < problem.queue; --row) {
    if (!counts(row)) continue;
    rows.push_back(row);
    ++queued;
  }
  return rows;
}

}  // namespace

PairLoop smooth_ap_by_pairs(std::span<const double> scores, std::span<const std::uint8_t> positive,
                            double temperature, std::chrono::nanoseconds limit) {
  const std::vector<std::size_t> anchors = rows_with(positive);
  PairLoop loop;
  loop.gradient.resize(scores.size());
  const double share = 1 / static_cast<double>(anchors.size());
  std::vector<double> sigma(scores.size());
  loop.loss = 1;
  run(loop, anchors, limit, [&](std::size_t k) {
    double a = 1;
    double b = 1;
    for (std::size_t j = 0; j < scores.size(); ++j) {
      if (j == k) continue;
      sigma[j] = sigmoid((scores[j] - scores[k]) / temperature);
      a += sigma[j];
      if (positive[j] != 0) b += sigma[j];
    }
    loop.loss -= share * b / a;
    double own = 0;
    for (std::size_t j = 0; j < scores.size(); ++j) {
      if (j == k) continue;
      const double weight = (positive[j] != 0 ? 1 / a : 0) - b / (a * a);
      const double slope = share * weight * sigma[j] * (1 - sigma[j]) / temperature;
      loop.gradient[j] -= slope;
      own += slope;
    }
    loop.gradient[k] += own;
  });
  return loop;
}

PairLoop p_auc_by_pairs(std::span<const double> scores, std::span<const std::uint8_t> positive,
                        const losses::PAucDiagnostics& band, std::chrono::nanoseconds limit) {
  const std::vector<std::size_t> anchors = rows_with(positive);
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < scores.size(); ++i)
    if (positive[i] == 0 && scores[i] >= band.t_beta && scores[i] <= band.t_alpha)
      others.push_back(i);
  PairLoop loop;
  loop.gradient.resize(scores.size());
  const double share =
      1 / (static_cast<double>(anchors.size()) * static_cast<double>(others.size()));
  loop.loss = 1;
  run(loop, anchors, limit, [&](std::size_t i) {
    for (const std::size_t j : others) {
      const double sigma = sigmoid((scores[i] - scores[j]) / band.tau_eff);
      const double slope = share * sigma * (1 - sigma) / band.tau_eff;
      loop.loss -= share * sigma;
      loop.gradient[i] -= slope;
      loop.gradient[j] += slope;
    }
  });
  return loop;
}

std::optional<PairTime> time_pairs(LossKind kind, const LossProblem& problem, std::int64_t call,
                                   double temperature,
                                   std::span<const losses::PAucDiagnostics> bands) {
  const bool bands_of_pairs =
      kind == LossKind::p_auc_at_budget && problem.surrogate == Surrogate::pairwise;
  if (kind != LossKind::smooth_ap && !bands_of_pairs) return std::nullopt;
  const std::vector<std::int64_t> rows = pool_rows(problem, call);
  const auto limit = std::chrono::nanoseconds(std::chrono::seconds(1)) / problem.classes;
  PairTime total;
  std::vector<double> scores(rows.size());
  std::vector<std::uint8_t> positive(rows.size());
  for (std::int64_t c = 0; c < problem.classes; ++c) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      positive[i] = belongs_to(problem, rows[i], c) ? 1 : 0;
      scores[i] = score_of(problem, rows[i], c);
    }
    const PairLoop loop =
        bands_of_pairs ? p_auc_by_pairs(scores, positive, bands[static_cast<std::size_t>(c)], limit)
                       : smooth_ap_by_pairs(scores, positive, temperature, limit);
    if (loop.done == 0) continue;
    total.estimated = total.estimated || loop.done < loop.anchors;
    total.time += std::chrono::nanoseconds(static_cast<std::int64_t>(
        static_cast<double>(loop.time.count()) * static_cast<double>(loop.anchors) /
        static_cast<double>(loop.done)));
  }
  return total;
}

}  // namespace tutti::tool
