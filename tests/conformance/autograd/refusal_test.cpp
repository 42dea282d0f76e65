#include <tutti/autograd.hpp>

#include "conformance/autograd/gradient_check.hpp"
#include "support/memories.hpp"

// Calls without a gradient, or with contradictory arguments, are refused by name, and the group
// stays usable.

namespace tutti::test {
namespace {

class AutogradRefusal : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AutogradRefusal, testing::ValuesIn(worlds()), CaseName());

void expect_refused(const std::string& function, const std::vector<std::string>& texts,
                    const std::function<void()>& call) {
  auto all = texts;
  all.push_back(function);
  expect_error(Errc::invalid_argument, all, call);
}

TEST_P(AutogradRefusal, DtypesWithoutAGradientAreRefusedAtTheForward) {
  // A fresh group: a refused send waits until its receiver can read the refusal.
  on_fresh_ranks(GetParam(), [](ProcessGroup& group) {
    const auto layout = RowLayout::equal(group.size(), 1);
    const std::vector<std::int64_t> rows(index(group.size()), 1);
    std::vector<int> to;
    for (int r = 0; r < group.size(); ++r) to.push_back(r);
    for (const DType dtype :
         {DType::i32, DType::u8, DType::i64, DType::boolean, DType::f8e4m3, DType::f8e5m2}) {
      const std::vector<std::byte> bytes(index(group.size()) * 8);
      const ConstTensorView in(bytes.data(), dtype, {group.size()});
      const std::vector<std::string> texts{std::string(name_of(dtype)), "has no gradient"};
      expect_refused("all_gather_rows", texts,
                     [&] { autograd::all_gather_rows(group, in, GradScale::sum); });
      expect_refused("reduce_scatter_rows", texts,
                     [&] { autograd::reduce_scatter_rows(group, in, layout); });
      expect_refused("all_reduce", texts, [&] { autograd::all_reduce(group, in); });
      expect_refused("reduce", texts, [&] { autograd::reduce(group, in, 0); });
      expect_refused("broadcast", texts, [&] { autograd::broadcast(group, in, 0); });
      expect_refused("gather_rows", texts, [&] { autograd::gather_rows(group, in, 0); });
      expect_refused("all_to_all_rows", texts,
                     [&] { autograd::all_to_all_rows(group, in, rows, rows); });
      expect_refused("permute", texts, [&] { autograd::permute(group, in, to); });
      expect_refused("send", texts, [&] { autograd::send(group, in, 0); });
      expect_refused("recv", texts, [&] { autograd::recv(group, in.shape, dtype, 0); });
    }
    expect_usable(group);
  });
}

// Only root knows its array: the other ranks receive its refusal.
TEST_P(AutogradRefusal, AScatterWithoutAGradientIsRefusedByItsRoot) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const auto layout = RowLayout::equal(group.size(), 1);
    const std::vector<std::int32_t> whole(index(group.size()));
    if (group.rank() == 0)
      expect_refused("scatter_rows", {"i32", "has no gradient"},
                     [&] { autograd::scatter_rows(group, whole, layout, 0); });
    else
      expect_error(Errc::mismatch, {"rank 0", "refused", "scatter_rows"},
                   [&] { autograd::scatter_rows(group, {}, {}, 0); });
    expect_usable(group);
  });
}

TEST_P(AutogradRefusal, OperationsWithoutAGradientAreRefusedAtTheForward) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const Buffer x = put(group, Numbers(index(group.size())));
    const auto layout = RowLayout::equal(group.size(), 1);
    for (const ReduceOp op : {ReduceOp::band, ReduceOp::bor, ReduceOp::bxor})
      expect_refused("all_reduce", {std::string(name_of(op.kind)), "no gradient", "prod"},
                     [&] { autograd::all_reduce(group, x, op); });
    for (const ReduceOp op : {ReduceOp::band, ReduceOp::min, ReduceOp::max, ReduceOp::prod}) {
      const std::vector<std::string> texts{std::string(name_of(op.kind)), "no gradient",
                                           "sum, avg, premul_sum"};
      expect_refused("reduce_scatter_rows", texts,
                     [&] { autograd::reduce_scatter_rows(group, x, layout, op); });
      expect_refused("reduce", texts, [&] { autograd::reduce(group, x, 0, op); });
    }
    expect_usable(group);
  });
}

TEST_P(AutogradRefusal, ContradictingLayoutsRootsAndPermutationsAreRefused) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const int size = group.size();
    const Buffer x = put(group, Numbers(index(size)));
    const auto more = RowLayout::equal(size, size + 1);
    const auto longer = RowLayout::equal(size + 1, size);
    const auto expect_bad = [&](const auto& call) {
      expect_error(Errc::invalid_argument, {}, call);
    };
    for (const RowLayout& layout : {more, longer}) {
      expect_bad([&] { autograd::all_gather_rows(group, x, GradScale::sum, layout); });
      expect_bad([&] { autograd::gather_rows(group, x, 0, layout); });
      expect_bad([&] { autograd::reduce_scatter_rows(group, x, layout); });
      const Rows rows = layout;
      expect_bad([&] { autograd::all_to_all_rows(group, x, rows, rows); });
    }
    const std::vector<std::int64_t> negative(index(size), -1);
    expect_bad([&] { autograd::all_to_all_rows(group, x, negative, negative); });
    expect_bad([&] { autograd::all_to_all_rows(group, x, Rows(-1), Rows(-1)); });
    const Buffer uneven = put(group, Numbers(index(size + 1)));
    if (size > 1) expect_bad([&] { autograd::all_to_all_rows(group, uneven); });
    for (const int root : {-1, size}) {
      expect_bad([&] { autograd::reduce(group, x, root); });
      expect_bad([&] { autograd::broadcast(group, x, root); });
      expect_bad([&] { autograd::gather_rows(group, x, root); });
    }
    std::vector<int> twice(index(size), 0);
    if (size > 1) expect_refused("permute", {"{0, 0"}, [&] { autograd::permute(group, x, twice); });
    twice.push_back(size);
    expect_refused("permute", {"each of the ranks 0 to " + std::to_string(size - 1)},
                   [&] { autograd::permute(group, x, twice); });
    const ConstTensorView null(nullptr, DType::f64, {2});
    expect_bad([&] { autograd::all_reduce(group, null); });
    if (group.memory().device().type == DeviceType::cpu)
      expect_bad([&] { autograd::all_reduce(group, null, ReduceOp::prod); });
    expect_bad([&] { autograd::reduce(group, null, 0); });
    expect_usable(group);
  });
}

struct NamedBackward {
  std::string name;  ///< Name of the forward.
  autograd::Backward call;
  bool of_part = false;  ///< The value has the shape [1], not [W].
};

/// Calls whose arrays have the shape [W], or [1] on a rank with a part.
std::vector<NamedBackward> backwards(ProcessGroup& group, Memory* memory = nullptr) {
  const int size = group.size();
  const auto layout = RowLayout::equal(size, 1);
  const Buffer whole = put(group, Numbers(index(size)));
  const Buffer part = put(group, Numbers(1));
  const std::vector<std::int64_t> rows(index(size), 1);
  const CallOptions given{.memory = memory};
  const auto roots_layout = group.rank() == 0 ? layout : RowLayout();
  std::vector<NamedBackward> all{
      {"all_gather_rows",
       autograd::all_gather_rows(group, part, GradScale::sum, layout, given).back},
      {"reduce_scatter_rows",
       autograd::reduce_scatter_rows(group, whole, layout, ReduceOp::sum, given).back, true},
      {"all_to_all_rows", autograd::all_to_all_rows(group, whole, rows, rows, given).back},
      {"all_reduce", autograd::all_reduce(group, whole).back},
      {"reduce", autograd::reduce(group, whole, 0).back},
      {"broadcast", autograd::broadcast(group, whole, 0).back},
      {"gather_rows", autograd::gather_rows(group, part, 0, layout, given).back},
      {"scatter_rows", autograd::scatter_rows(group, whole, roots_layout, 0).back, true}};
  return all;
}

/// These calls read only root's gradient.
bool only_root(const NamedBackward& backward) {
  return backward.name == "reduce" || backward.name == "gather_rows";
}

TEST_P(AutogradRefusal, AGradientOfAnotherShapeOrDtypeIsRefusedByEveryBackward) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const Buffer longer = put(group, Numbers(index(group.size()) + 1));
    const Buffer others(group, DType::f32, {group.size()});
    for (const NamedBackward& backward : backwards(group)) {
      if (only_root(backward) && group.size() > 1) continue;  // See below.
      expect_refused(backward.name, {"(backward)", "gradient is f64 [", "was f64 ["},
                     [&] { backward.call(group, longer); });
      expect_refused(backward.name, {"(backward)", "gradient is f32 [", "was f64 ["}, [&] {
        backward.call(group, backward.of_part ? others.rows(0, 1) : others.view());
      });
    }
    const Buffer part = put(group, Numbers(1));
    const auto slice = autograd::all_gather_rows(group, part, GradScale::local_slice);
    expect_refused("all_gather_rows", {"gradient is"}, [&] { slice.back(group, longer); });
    expect_usable(group);
  });
}

class AutogradRefusalOfOne : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AutogradRefusalOfOne, testing::ValuesIn(worlds_that_compare()),
                         CaseName());

// A refused call takes its number like any other call, so the next calls of all ranks match.
TEST_P(AutogradRefusalOfOne, DoesNotShiftTheCallsBehindIt) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const bool last = group.rank() == group.size() - 1;
    const Buffer local(group, Array(last ? DType::i32 : DType::f32, {4}));
    const auto expect_told = [&](const std::function<void()>& call) {
      expect_error(last ? Errc::invalid_argument : Errc::mismatch, {"has no gradient"}, call);
      expect_usable(group);
    };
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { autograd::all_reduce(group, local); },
             [&] { autograd::all_gather_rows(group, local, GradScale::sum); },
             [&] { autograd::reduce(group, local, 0); },
             [&] { autograd::broadcast(group, local, 0); },
             [&] { autograd::gather_rows(group, local, 0); }})
      expect_told(call);
    if (group.memory().device().type != DeviceType::cpu) return;  // All ranks refuse these.
    expect_told([&] { autograd::all_reduce(group, local, ReduceOp::max); });
    expect_told([&] { autograd::all_reduce(group, local, ReduceOp::prod); });
  });
}

TEST_P(AutogradRefusalOfOne, IsToldToTheOthers) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const Buffer right = put(group, Numbers(index(group.size())));
    const Buffer wrong = put(group, Numbers(index(group.size()) + 1));
    for (const NamedBackward& backward : backwards(group)) {
      SCOPED_TRACE(backward.name);
      if (group.rank() == 0)
        expect_refused(backward.name, {"gradient is"}, [&] { backward.call(group, wrong); });
      else
        expect_error(Errc::mismatch, {"rank 0", "refused"}, [&] {
          backward.call(group, backward.of_part ? right.rows(0, 1) : right.view());
        });
      expect_usable(group);
    }
  });
}

TEST_P(AutogradRefusalOfOne, ARankWithoutMemoryForItsResultTellsTheOthers) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    bool ended = false;
    const auto check = [&](std::size_t bytes) {
      if (ended) throw Error(Errc::resource_exhausted, "no " + std::to_string(bytes) + " bytes");
    };
    FailingMemory memory(check, group.memory());
    const auto layout = RowLayout::equal(group.size(), 1);
    const Buffer x = put(group, Numbers(1));
    const Buffer c = put(group, Numbers(index(group.size())));
    const std::vector<std::int64_t> rows(index(group.size()), 1);
    const CallOptions options{.memory = &memory};
    const auto before = backwards(group, &memory);
    ended = group.rank() == 1;
    const auto expect_told = [&](const auto& call) {
      if (group.rank() == 1)
        expect_error(Errc::resource_exhausted, {"no ", " bytes"}, call);
      else
        expect_error(Errc::mismatch, {"rank 1", "refused"}, call);
      expect_usable(group);
    };
    expect_told([&] { autograd::all_gather_rows(group, x, GradScale::sum, layout, options); });
    expect_told([&] { autograd::reduce_scatter_rows(group, c, layout, ReduceOp::sum, options); });
    expect_told([&] { autograd::all_to_all_rows(group, c, rows, rows, options); });
    for (const NamedBackward& backward : before) {
      SCOPED_TRACE(backward.name);
      if (backward.name == "all_gather_rows" || backward.name == "all_to_all_rows")
        expect_told([&] { backward.call(group, c); });
      if (backward.name == "reduce_scatter_rows") expect_told([&] { backward.call(group, x); });
    }
  });
}

TEST_P(AutogradRefusalOfOne, ABackwardBelongsToAGroupOfTheForwardsSize) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    auto alone = group.split(group.rank(), 0);
    const Buffer x = put(group, {1, 2}, {1, 2});
    const auto all = autograd::all_gather_rows(group, x, GradScale::local_slice);
    const ConstTensorView gradient = all.value;
    expect_refused("all_gather_rows (backward)",
                   {"rank 0 of 1", "of " + std::to_string(group.size())},
                   [&] { all.back(*alone, gradient); });
    const auto own = autograd::all_gather_rows(*alone, x, GradScale::local_slice);
    expect_refused("all_gather_rows (backward)", {"forward was called on rank 0 of 1"},
                   [&] { own.back(group, x); });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
