#include <tutti/autograd_root.hpp>

#include "conformance/autograd/gradient_check.hpp"

namespace tutti::test {
namespace {

using autograd::RootContext;

class AutogradRoot : public testing::TestWithParam<World> {
 protected:
  /// With every rank of the group and its parts as root.
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
      expect_adjoint(
          group, equal_shape,
          [&](ProcessGroup& g, const ConstTensorView& x) {
            auto at = autograd::reduce(g, x, root, op);
            EXPECT_EQ(at.out.shape(), g.rank() == root ? equal_shape : Shape{0});
            return at;
          },
          [](ProcessGroup& g, const RootContext& context, const ConstTensorView& c) {
            return autograd::reduce_vjp(g, context, c);
          });
    }
  });
}

TEST_P(AutogradRoot, TheAdjointOfABroadcastIsASumAtRootAndZeroElsewhere) {
  on_roots([](ProcessGroup& group, int root) {
    expect_adjoint(
        group, equal_shape,
        [&](ProcessGroup& g, const ConstTensorView& x) {
          // Read on root only.
          const ConstTensorView unread(nullptr, x.dtype, x.shape, x.device);
          return autograd::broadcast(g, g.rank() == root ? x : unread, root);
        },
        [](ProcessGroup& g, const RootContext& context, const ConstTensorView& c) {
          return autograd::broadcast_vjp(g, context, c);
        });
  });
}

TEST_P(AutogradRoot, TheAdjointOfAGatherIsAScatter) {
  on_roots([](ProcessGroup& group, int root) {
    for (const Layout& layout : uneven_layouts(group.size())) {
      SCOPED_TRACE("rows " + to_string(layout));
      expect_adjoint(
          group, own_rows(group, layout),
          [&](ProcessGroup& g, const ConstTensorView& x) {
            return autograd::gather_rows(g, x, root);
          },
          [&](ProcessGroup& g, const RootContext& context, const ConstTensorView& c) {
            return autograd::gather_rows_vjp(g, context, g.rank() == root ? c : ConstTensorView());
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
      expect_adjoint(
          group, at_root ? Shape{rows.total(), 2} : Shape{0},
          [&](ProcessGroup& g, const ConstTensorView& x) {
            return autograd::scatter_rows(g, x, at_root ? &rows : nullptr, root);
          },
          [](ProcessGroup& g, const RootContext& context, const ConstTensorView& c) {
            return autograd::scatter_rows_vjp(g, context, c);
          });
    }
  });
}

}  // namespace
}  // namespace tutti::test
