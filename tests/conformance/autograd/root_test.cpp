#include <tutti/autograd.hpp>

#include "conformance/autograd/gradient_check.hpp"

namespace tutti::test {
namespace {

class AutogradRoot : public testing::TestWithParam<World> {
 protected:
  /// Runs with every rank of the group and of its sub-groups as root.
  void on_roots(const std::function<void(ProcessGroup& group, int root)>& body) {
    on_group_and_parts(GetParam(), [&](ProcessGroup& group) {
      for (int root = 0; root < group.size(); ++root) {
        SCOPED_TRACE("root " + std::to_string(root));
        body(group, root);
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, AutogradRoot, testing::ValuesIn(worlds()), CaseName());

TEST_P(AutogradRoot, TheAdjointOfAReduceIsABroadcastOfRootsGradientScaled) {
  on_roots([](ProcessGroup& group, int root) {
    for (const ReduceOp op : linear_ops(group)) {
      SCOPED_TRACE(name_of(op.kind));
      expect_adjoint(group, equal_shape, [&](ProcessGroup& g, const ConstTensorView& x) {
        auto at = autograd::reduce(g, x, root, op);
        EXPECT_EQ(at.value.shape(), g.rank() == root ? equal_shape : Shape{0});
        return at;
      });
    }
  });
}

TEST_P(AutogradRoot, TheAdjointOfABroadcastIsASumAtRootAndZeroElsewhere) {
  on_roots([](ProcessGroup& group, int root) {
    expect_adjoint(group, equal_shape, [&](ProcessGroup& g, const ConstTensorView& x) {
      // Read on root only.
      const ConstTensorView unread(nullptr, x.dtype, x.shape, x.device);
      return autograd::broadcast(g, g.rank() == root ? x : unread, root);
    });
  });
}

TEST_P(AutogradRoot, TheAdjointOfAGatherIsAScatter) {
  on_roots([](ProcessGroup& group, int root) {
    for (const Layout& layout : uneven_layouts(group.size())) {
      SCOPED_TRACE("rows " + to_string(layout));
      const Shape shape = own_rows(group, layout);
      expect_adjoint_at(
          group, random_numbers(shape.numel(), group.rank(), 5), shape,
          [&](ProcessGroup& g, const ConstTensorView& x) {
            return autograd::gather_rows(g, x, root);
          },
          [&](const autograd::Differentiable& at, const ConstTensorView& c) {
            return at.back(group, group.rank() == root ? c : ConstTensorView()).value;
          });
    }
  });
}

TEST_P(AutogradRoot, TheAdjointOfAScatterIsAGather) {
  on_roots([](ProcessGroup& group, int root) {
    for (const Layout& layout : uneven_layouts(group.size())) {
      SCOPED_TRACE("rows " + to_string(layout));
      const bool at_root = group.rank() == root;
      const RowLayout rows(layout);
      expect_adjoint(group, at_root ? Shape{rows.total(), 2} : Shape{0},
                     [&](ProcessGroup& g, const ConstTensorView& x) {
                       return autograd::scatter_rows(g, x, at_root ? rows : RowLayout(), root);
                     });
    }
  });
}

}  // namespace
}  // namespace tutti::test
