// Three ranks train an alarm that may flag 2 % of the transactions.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/training.hpp>

namespace {

namespace losses = tutti::losses;

constexpr double budget = 0.02;
constexpr std::array<std::size_t, 3> transactions{1500, 400, 1100};  // Rows of each rank.

struct Rows {
  std::vector<std::array<double, 2>> x;  // Size and unusualness of a transaction.
  std::vector<std::int64_t> fraud;
  std::vector<std::uint8_t> iid;  // 1: drawn at random.
};

/// Returns a rank's transactions. One in 50 is a fraud, and one in 50 is large and honest. One in
/// 10 is a large false alarm of last year; all false alarms were kept, so they are more frequent
/// here than in production.
Rows rows_of(std::size_t rank) {
  std::mt19937 bits(static_cast<unsigned>(rank));
  const auto noise = [&] {  // Roughly normal, and the same with every standard library.
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(bits()) / 4294967296;
    return sum;
  };
  Rows rows;
  for (std::size_t i = 0; i < transactions[rank]; ++i) {
    const bool fraud = i % 50 == 7, kept = i % 10 == 4, large = kept || i % 50 == 31;
    const double size = noise() + (fraud ? 2 : large ? 4 : 0);
    rows.x.push_back({size, noise() + (fraud ? 3 : 0)});
    rows.fraud.push_back(fraud);
    rows.iid.push_back(!kept);
  }
  return rows;
}

// Only the order of scores matters, so an angle determines both weights.
std::vector<double> scores_of(const Rows& rows, double angle) {
  std::vector<double> scores;
  for (const auto& [size, oddity] : rows.x)
    scores.push_back(size * std::cos(angle) + oddity * std::sin(angle));
  return scores;
}

/// Returns the angle after 40 steps from 0. At angle 0 the score is the size alone.
double train(tutti::ProcessGroup& group, losses::RankingLoss& loss, const Rows& rows) {
  double angle = 0;
  for (int step = 0; step < 40; ++step) {
    const std::vector<double> scores = scores_of(rows, angle);
    const auto result = loss(group, {scores, rows.fraud, rows.iid});
    const auto by_score = result.grad.values<double>();
    std::array<double, 1> gradient{};
    for (std::size_t i = 0; i < rows.x.size(); ++i) {
      const auto& [size, oddity] = rows.x[i];
      gradient[0] += by_score[i] * (oddity * std::cos(angle) - size * std::sin(angle));
    }
    group.all_reduce(gradient, tutti::ReduceOp::avg);
    angle -= 0.5 * gradient[0];
  }
  return angle;
}

/// Prints the flagged rows before and after the training, counting only rows drawn at random.
void show(tutti::ProcessGroup& group, losses::RankingLoss& loss, losses::PAucAtBudget& band,
          const Rows& rows, const tutti::ConstTensorView& iid) {
  for (const double angle : {0.0, train(group, loss, rows)}) {
    const std::vector<double> scores = scores_of(rows, angle);
    const double value = loss(group, {scores, rows.fraud, iid}).loss;
    (void)band(group, {scores, rows.fraud, iid});
    const double threshold = band.diagnostics()[0].t_beta;
    std::array<int, 4> count{};  // Honest rows, frauds, flagged honest rows, flagged frauds.
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const std::size_t kind = rows.fraud[i] != 0 ? 1 : 0;
      count[kind] += rows.iid[i];
      count[kind + 2] += scores[i] >= threshold ? rows.iid[i] : 0;
    }
    group.all_reduce(count);
    if (group.rank() == 0)
      std::printf("  %s loss %.3f; above %.2f are %2d of %d frauds, %2d of %d others\n",
                  angle == 0 ? "before: " : "trained:", value, threshold, count[3], count[1],
                  count[2], count[0]);
  }
}

void alarm(tutti::ProcessGroup& group) {
  const auto r = static_cast<std::size_t>(group.rank());
  const Rows rows = rows_of(r);

  if (r == 0) std::printf("2 %% of all rows (RecallAtQuantile)\n");
  losses::RecallAtQuantile recall({.quantile = budget, .temperature = 0.3});
  losses::PAucAtBudget of_all(
      {.beta = budget, .basis = losses::PAucAtBudget::Options::Basis::population});
  show(group, recall, of_all, rows, {});

  if (r == 0) std::printf("2 %% of the honest rows drawn at random (PAucAtBudget)\n");
  losses::PAucAtBudget p_auc({.beta = budget, .temperature = 0.2});
  show(group, p_auc, p_auc, rows, rows.iid);

  // A budget that differs between ranks is an error on all of them.
  losses::RecallAtQuantile other({.quantile = r == 2 ? 0.05 : budget});
  try {
    const std::vector<double> scores = scores_of(rows, 0);
    (void)other(group, {scores, rows.fraud});
  } catch (const tutti::Error& error) {
    if (r == 0) std::printf("\n%s\n", error.what());
  }
}

}  // namespace

int main() {
  const auto store = tutti::make_memory_store();
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([=] {
      auto group = tutti::ProcessGroup::create(
          {.backend = "local", .store = store, .rank = rank, .size = 3});
      alarm(group);
    });
}
