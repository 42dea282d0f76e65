#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/ddp/gradient_reducer.hpp>
#include <tutti/ddp/sharded_update.hpp>

#include "support/counted_allocations.hpp"
#include "support/ranks.hpp"

// A step of a reducer allocates nothing, and a reducer's memory is one copy of the gradients.

namespace tutti::test {
namespace {

constexpr int ranks = 2;
constexpr std::size_t parameters = 20;

/// Returns the number of allocations in the steps of all ranks after `warm_up` steps.
std::uint64_t count(int warm_up, const ddp::ReducerOptions& options, bool shards = false,
                    std::size_t numel = 100) {
  std::vector<CountingMemory> memories(ranks);
  RankBarrier barrier(ranks);
  std::atomic<std::uint64_t> result = 0;
  on_fresh_ranks(
      {"local", ranks, false},
      [&](ProcessGroup& group) {
        const auto& memory = memories[static_cast<std::size_t>(group.rank())];
        std::vector<std::vector<float>> gradients(parameters, std::vector<float>(numel));
        std::vector<std::vector<float>> values(parameters, std::vector<float>(numel));
        std::vector<ddp::Parameter> list;
        for (auto& value : values) list.push_back({"p", value});
        const std::size_t before = memory.live();
        ddp::GradientReducer reducer(group, list, options);
        std::optional<ddp::ShardedUpdate> sharded;
        if (shards) sharded.emplace(reducer);
        const ddp::ShardedUpdate::Update update = [](const auto&, const auto&, const auto&) {};
        const auto step = [&] {
          for (std::size_t id = parameters; id-- > 0;)
            reducer.mark_ready(id, options.gradient_as_bucket_view ? reducer.gradient(id)
                                                                   : TensorView(gradients[id]));
          reducer.finish();
          if (sharded) sharded->step(update);
        };
        for (int i = 0; i < warm_up; ++i) step();
        // Gradients begin at multiples of 16 floats. The status has 3 words, and the probe has one
        // byte.
        EXPECT_LE(memory.live() - before,
                  parameters * ((numel + 15) / 16 * 16) * sizeof(float) + 64);
        barrier.wait();
        if (group.rank() == 0) begin_counting();
        barrier.wait();
        for (int i = 0; i < 50; ++i) step();
        barrier.wait();
        if (group.rank() == 0) result = end_counting();
        barrier.wait();
      },
      {.adjust = [&](GroupOptions& group_options) {
        group_options.memory = &memories[static_cast<std::size_t>(group_options.rank)];
      }});
  return result;
}

// The group's task pool grows to the largest number of pending tasks, which takes some steps.
constexpr int until_pools_are_full = 100;

TEST(ReducerAllocation, AStepAllocatesNothing) {
  EXPECT_EQ(count(until_pools_are_full, {.first_bucket_cap = 1000, .bucket_cap = 2000}), 0U);
}

// Reduced in their arrays, a call for each.
TEST(ReducerAllocation, AStepWithLargeGradientsAllocatesNothing) {
  EXPECT_EQ(count(until_pools_are_full, {}, false, (1 << 18) + 1), 0U);
}

TEST(ReducerAllocation, AStepOverViewsAllocatesNothing) {
  EXPECT_EQ(count(until_pools_are_full,
                  {.first_bucket_cap = 1000, .bucket_cap = 2000, .gradient_as_bucket_view = true}),
            0U);
}

TEST(ReducerAllocation, AStepWithShardsAllocatesNothing) {
  EXPECT_EQ(count(until_pools_are_full, {.first_bucket_cap = 1000, .bucket_cap = 2000}, true), 0U);
}

TEST(ReducerAllocation, AStepWithOneBucketAllocatesNothingAfterTheSecond) {
  EXPECT_EQ(count(2, {.check_steps = false}), 0U);
}

}  // namespace
}  // namespace tutti::test
