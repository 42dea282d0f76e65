#include <tutti/autograd.hpp>

#include "conformance/autograd/gradient_check.hpp"
#include "support/fake_ranks.hpp"

// On the fake device: collectives that move and sum arrays work; those that need elementwise host
// arithmetic are refused by name.

namespace tutti::test {
namespace {

/// The arguments of a rank of these tests.
struct RankContext : FakeRank {
  ConstTensorView put(const std::vector<float>& values) const {
    const TensorView view(device.allocate(values.size() * sizeof(float), {}), DType::f32,
                          Shape::vector(std::ssize(values)), device.device());
    device.copy(view.data, values.data(), view.bytes(), {});
    return view;
  }
  std::vector<float> read(const Tensor& value) const {
    std::vector<float> values(static_cast<std::size_t>(value.shape().numel()));
    device.copy(values.data(), value.data(), value.bytes(), {});
    return values;
  }
};

void on_fake_ranks(const World& world, const std::function<void(const RankContext&)>& body) {
  run_fake_ranks(world, {}, [&](const FakeRank& rank) { body({rank}); });
}

class AutogradDevice : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AutogradDevice, testing::ValuesIn(worlds({1, 2})), CaseName());

TEST_P(AutogradDevice, WhatIsComputedElementByElementIsRefused) {
  on_fake_ranks(GetParam(), [](const RankContext& at) {
    auto& group = at.group;
    const auto x = at.put(std::vector<float>(static_cast<std::size_t>(group.size())));
    const auto layout = RowLayout::equal(group.size(), 1);
    const auto expect_unsupported = [&](const std::string& function, const auto& call) {
      expect_error(Errc::unsupported,
                   {"autograd::" + function, "host memory", to_string(at.device.device())}, call);
    };
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max, ReduceOp::prod, ReduceOp::premul(2)})
      expect_unsupported("all_reduce", [&] { autograd::all_reduce(group, x, op); });
    const auto scaled = ReduceOp::premul(2);
    expect_unsupported("reduce", [&] { autograd::reduce(group, x, 0, scaled); });
    expect_unsupported("reduce_scatter_rows",
                       [&] { autograd::reduce_scatter_rows(group, x, layout, scaled); });
    for (const auto& entry : group.trace()) EXPECT_EQ(entry.state, TraceEntry::State::refused);
  });
}

TEST_P(AutogradDevice, WhatMovesAndSumsWorks) {
  on_fake_ranks(GetParam(), [](const RankContext& at) {
    auto& group = at.group;
    const auto size = static_cast<std::size_t>(group.size());
    const auto sum = static_cast<float>(size);
    const std::vector<float> ones(size, 1);
    const auto c = at.put(ones);
    const auto x = at.put({static_cast<float>(group.rank())});
    const auto layout = RowLayout::equal(group.size(), 1);
    for (const auto grad : {GradScale::sum, GradScale::mean, GradScale::local_slice}) {
      const auto all = autograd::all_gather_rows(group, x, grad, layout);
      EXPECT_EQ(at.read(all.value).back(), sum - 1);
      EXPECT_EQ(at.read(all.back(group, c).value),
                std::vector<float>{grad == GradScale::sum ? sum : 1});
    }
    const auto part = autograd::reduce_scatter_rows(group, c, layout);
    EXPECT_EQ(at.read(part.value), std::vector<float>{sum});
    EXPECT_EQ(at.read(part.back(group, part.value).value), std::vector<float>(size, sum));
    const auto mean = autograd::reduce_scatter_rows(group, c, layout, ReduceOp::avg);
    EXPECT_EQ(at.read(mean.value), std::vector<float>{1});
    EXPECT_EQ(at.read(mean.back(group, part.value).value), ones);
    const auto rooted = autograd::reduce(group, c, 0, ReduceOp::avg);
    EXPECT_EQ(at.read(rooted.back(group, c).value), std::vector<float>(size, 1 / sum));
    const auto reduced = autograd::all_reduce(group, c, ReduceOp::avg);
    EXPECT_EQ(at.read(reduced.back(group, c).value), ones);
    const auto spread = autograd::broadcast(group, x, group.size() - 1);
    EXPECT_EQ(at.read(spread.value), std::vector<float>{sum - 1});
    const auto back = at.read(spread.back(group, spread.value).value);
    EXPECT_EQ(back[0], group.rank() == group.size() - 1 ? sum * (sum - 1) : 0);
  });
}

}  // namespace
}  // namespace tutti::test
