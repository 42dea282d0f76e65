// Metrics of an epoch over ranks with different numbers of rows.

#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include <tutti/metrics.hpp>
#include <tutti/sync.hpp>
#include <tutti/training.hpp>

namespace {

struct Batch {
  double loss;  // The mean over the rows of the batch.
  std::int64_t rows;
};

/// Returns the batches of each rank. The data set has 10 rows; the last batches are short, and rank
/// 2 has only one.
std::vector<Batch> batches_of(int rank) {
  if (rank == 0) return {{1.0, 3}, {2.0, 2}};
  if (rank == 1) return {{3.0, 3}, {6.0, 1}};
  return {{0.5, 1}};
}

struct Predictions {
  std::vector<float> scores;
  std::vector<std::int64_t> targets;
};

/// Returns the batches that each rank scores. Rank 2 has none.
std::vector<Predictions> predictions_of(int rank) {
  if (rank == 0) return {{{0.9F, 0.3F, 0.8F}, {1, 0, 1}}, {{0.6F}, {0}}};
  if (rank == 1) return {{{0.5F, 0.2F, 0.4F}, {1, 0, 0}}};
  return {};
}

/// Metrics of scores, over the rows of all ranks.
void evaluate(tutti::ProcessGroup& group) {
  tutti::metrics::ScoredRows rows;
  for (const auto& batch : predictions_of(group.rank())) rows.add(batch.scores, batch.targets);
  const auto all = tutti::metrics::binary_metrics(group, rows, {.precisions = {0.9}});
  if (group.rank() == 0)
    std::printf("AUROC %.4f, average precision %.4f, recall at precision 0.9 %.4f\n", all.auroc,
                all.average_precision, all.recalls[0]);
}

void train(tutti::ProcessGroup& group) {
  const bool first = group.rank() == 0;  // All ranks get the same; one prints it.
  double sum = 0;
  std::int64_t rows = 0;
  for (const Batch& batch : batches_of(group.rank())) {
    sum += batch.loss * static_cast<double>(batch.rows);
    rows += batch.rows;
  }
  const double own_mean = sum / static_cast<double>(rows);

  // The mean of the ranks' means gives the rows of small ranks too much weight.
  const double of_means = tutti::all_reduce_number(group, own_mean, tutti::ReduceOp::avg);
  const double right = tutti::global_mean(group, sum, static_cast<double>(rows));
  if (first) std::printf("mean of means %.3f, mean over all rows %.3f\n", of_means, right);

  std::vector<std::int64_t> correct{group.rank() == 0 ? 4 : 1, rows};
  group.all_reduce(correct);
  const auto worst = tutti::all_reduce_number(group, own_mean, tutti::ReduceOp::max);
  if (first)
    std::printf("correct %lld of %lld, the worst rank's mean %.3f\n",
                static_cast<long long>(correct[0]), static_cast<long long>(correct[1]), worst);

  // Several losses in one call, each with its own number of rows.
  const std::vector<tutti::NamedLoss> losses{
      {"class", sum, static_cast<double>(rows)},
      {"mask", group.rank() == 1 ? 3.0 : 0.0, group.rank() == 1 ? 2.0 : 0.0}};
  const std::vector<double> means = tutti::reduce_losses(group, losses);
  if (first) std::printf("class %.3f, mask %.3f\n", means[0], means[1]);

  // With gradient accumulation, a step's loss is the mean over all rows of all its batches.
  tutti::LossAccumulator step;
  step.expect("loss");  // Rank 2 may have no batch left; it still has the name.
  for (const Batch& batch : batches_of(group.rank())) step.add("loss", batch.loss, batch.rows);
  for (const auto& [name, mean] : step.reduce(group))
    if (first) std::printf("%s of the step %.3f\n", name.c_str(), mean);

  evaluate(group);

  // Different names are an error on every rank; its text names both sides.
  const std::vector<tutti::NamedLoss> other{{group.rank() == 2 ? "box" : "class", 1, 1}};
  try {
    (void)tutti::reduce_losses(group, other);
  } catch (const tutti::Error& error) {
    if (first) std::printf("\n%s\n", error.what());
  }
}

}  // namespace

int main() {
  constexpr int size = 3;
  const auto store = tutti::make_memory_store();
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([=] {
      auto group = tutti::ProcessGroup::create(
          {.backend = "local", .store = store, .rank = rank, .size = size});
      train(group);
    });
}
