#include <array>
#include <future>
#include <memory>

#include <tutti/sync.hpp>

#include "conformance/ddp/network.hpp"

// Reports losses as in docs/data-parallel.md, section "Losses".

namespace tutti::test {
namespace {

class LossLog : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, LossLog, testing::ValuesIn(worlds()), CaseName());

// Before the step no rank knows the number of rows in the global batch.
TEST_P(LossLog, UnevenMicroBatchesAreOneBatchInGradientAndLoss) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    Network<double> network(1);
    Network<double> alone(1);
    Staged<double> staged(group, network);
    ddp::GradientReducer reducer(group, staged.parameters(), {.divisor = 1});
    LossAccumulator losses;
    losses.expect("loss");  // A rank may have no rows.
    for (unsigned step = 0; step < 6; ++step) {
      const auto split = uneven_split(group.size(), step);
      const auto mine = split[index(group.rank())];
      std::int64_t row = offset(split, group.rank());
      network.zero_gradients();
      for (std::int64_t left = mine; left > 0;) {
        const auto rows = std::min<std::int64_t>(left, 2);
        const double sum = network.backward(step, row, rows, 1);
        losses.add("loss", sum / static_cast<double>(rows), rows);
        row += rows;
        left -= rows;
      }
      for (std::size_t id = 4; id-- > 0;) staged.mark(reducer, id);
      reducer.finish();
      staged.fetch_gradients();
      const auto rows = static_cast<double>(all_reduce_number(group, mine));
      EXPECT_EQ(rows, rows_of_batch);
      network.update(learning_rate / rows);

      alone.zero_gradients();
      const double want = alone.backward(step, 0, rows_of_batch, 1.0 / rows_of_batch);
      alone.update(learning_rate);
      EXPECT_NEAR(losses.reduce(group)[0].second, want, 1e-10);
    }
    EXPECT_LE(distance(network, alone), 1e-10);
  });
}

/// Reduces to rank 0, which logs. No rank waits.
void log_loss(ProcessGroup& group, double sum, double rows,
              const std::function<void(double mean)>& log) {
  auto sums = std::make_shared<std::array<double, 2>>(std::array{sum, rows});
  Work work = group.reduce_async(*sums, *sums, 0);
  if (group.rank() == 0)
    work.on_done([sums, log](const Error* error) {
      if (error == nullptr) log((*sums)[0] / (*sums)[1]);
    });
  std::move(work).detach(sums);
}

// Rank 0 starts its first log after the other ranks have made all their logs.
TEST_P(LossLog, NoRankWaitsForTheRankThatLogs) {
  constexpr std::size_t steps = 3;
  RankBarrier others_are_done(GetParam().size);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    auto logs = group.split(0);
    ASSERT_TRUE(logs.has_value());
    auto means = std::make_shared<std::array<std::promise<double>, steps>>();
    if (group.rank() == 0) others_are_done.wait();
    for (std::size_t step = 0; step < steps; ++step)
      log_loss(*logs, static_cast<double>(step) * (group.rank() + 1), group.rank() + 1,
               [means, step](double mean) { (*means)[step].set_value(mean); });
    if (group.rank() != 0) others_are_done.wait();
    if (group.rank() == 0)
      for (std::size_t step = 0; step < steps; ++step) {
        auto mean = (*means)[step].get_future();
        ASSERT_EQ(mean.wait_for(group_timeout), std::future_status::ready);
        EXPECT_EQ(mean.get(), static_cast<double>(step));
      }
  });
}

}  // namespace
}  // namespace tutti::test
