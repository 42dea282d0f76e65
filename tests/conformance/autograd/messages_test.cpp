#include <tutti/autograd.hpp>

#include <algorithm>

#include "conformance/autograd/gradient_check.hpp"

namespace tutti::test {
namespace {

class AutogradMessages : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AutogradMessages, testing::ValuesIn(worlds()), CaseName());

/// A ring, one message at a time: the array of rank r - 1 goes to rank r.
struct Around {
  Tensor value;
  autograd::Backward of_send, of_recv;
};

Around pass_on(ProcessGroup& group, const ConstTensorView& x) {
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  const auto receive = [&] { return autograd::recv(group, x.shape, x.dtype, previous, 3); };
  if (group.rank() == 0) {
    const auto sent = autograd::send(group, x, next, 3);
    auto received = receive();
    return {std::move(received.value), sent.back, received.back};
  }
  auto received = receive();
  return {std::move(received.value), autograd::send(group, x, next, 3).back, received.back};
}

/// Backwards are called in the reverse order.
Tensor pass_back(ProcessGroup& group, const Around& at, const ConstTensorView& c) {
  if (group.rank() == 0) {
    EXPECT_EQ(at.of_recv(group, c).value.shape(), Shape{0});
    return at.of_send(group, {}).value;
  }
  Tensor gradient = at.of_send(group, {}).value;
  EXPECT_EQ(at.of_recv(group, c).value.shape(), Shape{0});
  return gradient;
}

TEST_P(AutogradMessages, AGradientGoesBackTheWayTheMessageCame) {
  on_group_and_parts(GetParam(), [](ProcessGroup& group) {
    if (group.size() == 1) return;  // A blocking send to this rank would wait for ever.
    expect_adjoint_at(
        group, random_numbers(3, group.rank(), 5), equal_shape, pass_on,
        [&](const Around& at, const ConstTensorView& c) { return pass_back(group, at, c); });
  });
}

TEST_P(AutogradMessages, TheAdjointOfAPermutationIsItsInverse) {
  on_group_and_parts(GetParam(), [](ProcessGroup& group) {
    std::vector<int> to;
    for (int r = 0; r < group.size(); ++r) to.push_back(r);
    do {  // Every permutation, including fixed points and longer cycles.
      const Numbers mine{group.rank() + 0.5};
      const Buffer x = put(group, mine);
      const auto at = autograd::permute(group, x, to);
      const auto from = std::ranges::find(to, group.rank()) - to.begin();
      EXPECT_EQ(numbers(group, at.value), Numbers{static_cast<double>(from) + 0.5});
      const Tensor back = at.back(group, at.value).value;
      EXPECT_EQ(numbers(group, back), mine);
    } while (std::next_permutation(to.begin(), to.end()));
    std::rotate(to.begin(), to.begin() + 1, to.end());
    expect_adjoint(group, equal_shape, [&](ProcessGroup& g, const ConstTensorView& x) {
      return autograd::permute(g, x, to);
    });
  });
}

}  // namespace
}  // namespace tutti::test
