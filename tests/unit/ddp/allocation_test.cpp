#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/ddp/gradient_reducer.hpp>
#include <tutti/ddp/sharded_update.hpp>

#include "support/ranks.hpp"

// A step of a reducer allocates nothing, and a reducer's memory is one copy of the gradients. The
// library uses the operators below too, so its allocations are counted.

namespace {

std::atomic<bool> counting = false;
std::atomic<std::uint64_t> allocations = 0;

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  if (bytes == 0) bytes = 1;
  void* data = alignment <= alignof(std::max_align_t)
                   ? std::malloc(bytes)
                   : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

// Not inlined: GCC would see malloc() on one side and free() on the other, and warn of a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return allocate(bytes, 1);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* data) noexcept {
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept {
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::align_val_t) noexcept {
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::size_t, std::align_val_t) noexcept {
  std::free(data);
}

namespace tutti::test {
namespace {

/// The group's memory, which counts allocations.
class CountingMemory final : public Memory {
 public:
  Device device() const noexcept override { return {}; }
  void* allocate(std::size_t bytes, Stream stream) override {
    if (counting) ++allocations;
    live_ += bytes;
    return host_memory().allocate(bytes, stream);
  }
  void release(void* data, std::size_t bytes, Stream stream) noexcept override {
    live_ -= bytes;
    host_memory().release(data, bytes, stream);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    host_memory().copy(to, from, bytes, stream);
  }
  std::size_t live() const { return live_; }

 private:
  std::atomic<std::size_t> live_ = 0;
};

constexpr int ranks = 2;
constexpr std::size_t parameters = 20;
constexpr std::int64_t numel = 100;

/// Returns the number of allocations in the steps of all ranks after `warm_up` steps.
std::uint64_t count(int warm_up, const ddp::ReducerOptions& options, bool shards = false) {
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
        // 100 floats are padded to 112. The status has 3 words, and the probe has one byte.
        EXPECT_LE(memory.live() - before, parameters * 112 * sizeof(float) + 64);
        barrier.wait();
        if (group.rank() == 0) {
          allocations = 0;
          counting = true;
        }
        barrier.wait();
        for (int i = 0; i < 50; ++i) step();
        barrier.wait();
        if (group.rank() == 0) {
          counting = false;
          result = allocations.load();
        }
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
