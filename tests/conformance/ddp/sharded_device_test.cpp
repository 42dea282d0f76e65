#include <functional>

#include <tutti/ddp/sharded_update.hpp>
#include <tutti/ddp/sparse_rows.hpp>

#include "conformance/cells.hpp"
#include "support/fake_ranks.hpp"

// Shards and sparse rows on a fake device, with slow kernels on a stream.

namespace tutti::test {
namespace {

using ddp::Shard;

constexpr auto slow = 20ms;
constexpr std::int64_t sharded_elements = 100;

void on_fake_ranks(const World& world,
                   const std::function<void(ProcessGroup&, FakeDevice&, FakeStream&)>& body) {
  run_fake_ranks(world, {},
                 [&](const FakeRank& rank) { body(rank.group, rank.device, rank.compute); });
}

template <typename T>
std::vector<T> read(FakeDevice& device, const ConstTensorView& array, Stream stream) {
  std::vector<T> host(static_cast<std::size_t>(array.shape.numel()));
  device.copy(host.data(), array.data, array.bytes(), stream);
  return host;
}

class ShardedOnDevice : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ShardedOnDevice, testing::ValuesIn(worlds({1, 2, 3})), CaseName());

// The update is a slow kernel that sets a parameter to its gradient.
TEST_P(ShardedOnDevice, ParametersTravelBehindTheUpdate) {
  on_fake_ranks(GetParam(), [](ProcessGroup& group, FakeDevice& device, FakeStream& stream) {
    for (const bool check : {true, false}) {
      const auto make = [&] {
        return TensorView(device.allocate(sharded_elements * sizeof(float), {}), DType::f32,
                          {sharded_elements}, device.device());
      };
      const TensorView a = make();
      const TensorView b = make();
      device.fill(a, 0, {}, {});
      device.fill(b, 0, {}, {});
      ddp::GradientReducer reducer(group, {{"a", a}, {"b", b}},
                                   {.first_bucket_cap = 448, .check_steps = check});
      ddp::ShardedUpdate sharded(reducer);
      const float mean = static_cast<float>(group.size() + 1) / 2;
      for (int step = 1; step <= 3; ++step) {
        const TensorView da = make();
        const TensorView db = make();
        const auto value = static_cast<float>(step * (group.rank() + 1));
        device.fill(da, value, slow, stream.handle());
        device.fill(db, 2 * value, slow, stream.handle());
        reducer.mark_ready(1, db, stream.handle());
        reducer.mark_ready(0, da, stream.handle());
        reducer.finish();
        sharded.step(
            [&](const Shard&, const TensorView& parameter, const ConstTensorView& gradient) {
              device.copy_kernel(parameter, gradient, slow, stream.handle());
            },
            stream.handle());
        const auto want = static_cast<float>(step) * mean;
        for (const float v : read<float>(device, a, stream.handle())) ASSERT_EQ(v, want);
        for (const float v : read<float>(device, b, stream.handle())) ASSERT_EQ(v, 2 * want);
      }
    }
  });
}

TEST_P(ShardedOnDevice, SparseRowsAreAddedOnTheHost) {
  on_fake_ranks(GetParam(), [](ProcessGroup& group, FakeDevice& device, FakeStream& stream) {
    const std::vector<std::int64_t> mine{5, group.rank()};
    const TensorView indices(device.allocate(16, {}), DType::i64, {2}, device.device());
    device.copy(indices.data, mine.data(), 16, stream.handle());
    const TensorView rows(device.allocate(16, {}), DType::f32, {2, 2}, device.device());
    device.fill(rows, static_cast<float>(group.rank() + 1), slow, stream.handle());
    const ddp::SparseRows sum =
        ddp::all_reduce_rows(group, indices, rows, {}, {}, {.stream = stream.handle()});
    EXPECT_EQ(sum.values.device(), device.device());
    std::vector<std::int64_t> want_indices;
    std::vector<float> want;
    for (int rank = 0; rank < group.size(); ++rank) {
      want_indices.push_back(rank);
      want.insert(want.end(), 2, static_cast<float>(rank + 1));
    }
    want_indices.push_back(5);
    want.insert(want.end(), 2, static_cast<float>(group.size() * (group.size() + 1)) / 2);
    EXPECT_EQ(read<std::int64_t>(device, sum.indices, stream.handle()), want_indices);
    EXPECT_EQ(read<float>(device, sum.values, stream.handle()), want);
  });
}

}  // namespace
}  // namespace tutti::test
