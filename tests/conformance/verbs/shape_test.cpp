#include <cmath>

#include "conformance/cells.hpp"

// Edge cases of shapes: scalars, eight dimensions, empty arrays.

namespace tutti::test {
namespace {

class Shapes : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Shapes, testing::ValuesIn(worlds()), CaseName());

TEST_P(Shapes, OneNumberIsReducedWithoutAnArray) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const int rank = group.rank();
    const int size = group.size();
    EXPECT_EQ(group.all_reduce(rank + 1), size * (size + 1) / 2);
    EXPECT_EQ(group.all_reduce(0.5F * static_cast<float>(rank), ReduceOp::max),
              0.5F * static_cast<float>(size - 1));
    EXPECT_EQ(group.all_reduce(2.0, ReduceOp::prod), std::ldexp(1.0, size));
    EXPECT_EQ(group.all_reduce(std::int64_t{1} << 40, ReduceOp::min), std::int64_t{1} << 40);
    if (!reduces(group.backend(), DType::u8, ReduceOp::bor.kind)) return;
    EXPECT_EQ(group.all_reduce(static_cast<std::uint8_t>(1U << rank), ReduceOp::bor),
              (1U << size) - 1);
    EXPECT_EQ(group.all_reduce(rank == 0, ReduceOp::bor), true);
    EXPECT_EQ(group.all_reduce(rank == 0 && size > 1, ReduceOp::band), false);
  });
}

/// One call of every verb with a single array shape per rank, each checked on every rank.
void check_every_verb(ProcessGroup& group, const Shape& shape) {
  const int rank = group.rank();
  const int size = group.size();
  const DType dtype = DType::i32;
  const auto inputs = make_inputs(dtype, shape, size, Fill::exact);
  const Array& mine = inputs[index(rank)];
  const Array sum = reduce_in_order(ReduceOp::Kind::sum, inputs);

  const Buffer in(group, mine);
  {
    const Buffer out(group, dtype, shape);
    group.all_reduce(in, out);
    EXPECT_TRUE(same(out.read(), sum)) << "all_reduce";
  }
  {
    const Buffer data(group, mine);
    group.broadcast(data, size - 1);
    EXPECT_TRUE(same(data.read(), inputs.back())) << "broadcast";
  }
  {
    const Buffer out(group, dtype, shape);
    group.reduce(in, out, 0);
    if (rank == 0) {
      EXPECT_TRUE(same(out.read(), sum)) << "reduce";
    }
  }
  {
    const Buffer out(group, dtype, shape);
    group.scan(in, out);
    const auto before = std::span(inputs).first(index(rank + 1));
    EXPECT_TRUE(same(out.read(), reduce_in_order(ReduceOp::Kind::sum, before))) << "scan";
    group.exclusive_scan(in, out);
    if (rank > 0) {
      EXPECT_TRUE(same(out.read(), reduce_in_order(ReduceOp::Kind::sum, before.first(index(rank)))))
          << "exclusive_scan";
    }
  }
  const Array all = concat(inputs);
  {
    const Buffer out(group, dtype, all.shape());
    group.all_gather(in, out);
    EXPECT_TRUE(same(out.read(), all)) << "all_gather";
    const Buffer again(group, dtype, all.shape());
    group.gather(in, again, size - 1);
    if (rank == size - 1) {
      EXPECT_TRUE(same(again.read(), all)) << "gather";
    }
  }
  {
    const Buffer whole(group, all);
    const Buffer part(group, dtype, shape);
    group.scatter(whole, part, 0);
    EXPECT_TRUE(same(part.read(), mine)) << "scatter";
    group.reduce_scatter(whole, part, {}, ReduceOp::max);
    EXPECT_TRUE(same(part.read(), mine)) << "reduce_scatter";
    const Buffer exchanged(group, dtype, all.shape());
    group.all_to_all(whole, exchanged);
    const std::vector<Array> copies(index(size), mine);
    EXPECT_TRUE(same(exchanged.read(), concat(copies))) << "all_to_all";
  }
  {
    const Buffer out(group, dtype, shape);
    Work received = group.recv_async(out, (rank + size - 1) % size, 5);
    group.send_async(in, (rank + 1) % size, 5).wait();
    received.wait();
    EXPECT_TRUE(same(out.read(), inputs[index((rank + size - 1) % size)])) << "send, recv";
  }
}

TEST_P(Shapes, AScalarIsOneElementAndOneRow) {
  on_ranks(GetParam(), [](ProcessGroup& group) { check_every_verb(group, {}); });
}

TEST_P(Shapes, EightDimensionsWork) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    check_every_verb(group, {2, 1, 3, 1, 2, 1, 1, 2});
  });
}

TEST_P(Shapes, ManySmallRowsWork) {
  on_ranks(GetParam(), [](ProcessGroup& group) { check_every_verb(group, {1021, 1}); });
}

// A call without bytes takes part in the order of calls and changes nothing.
TEST_P(Shapes, CallsWithoutElementsSucceed) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    for (const Shape& shape : {Shape{0}, Shape{3, 0}, Shape{0, 3}, Shape{2, 0, 5}})
      check_every_verb(group, shape);
    expect_usable(group);
  });
}

TEST_P(Shapes, CallsWithoutElementsNeedNoArray) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const TensorView nothing(nullptr, DType::f32, {0}, group.memory().device());
    group.all_reduce(nothing);
    group.broadcast(nothing, 0);
    group.all_gather(nothing, nothing);
    group.reduce_scatter(nothing, nothing);
    group.all_to_all(nothing, nothing);
    group.all_reduce_async(nothing).wait();
    expect_usable(group);
  });
}

class ShapesCompared : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ShapesCompared, testing::ValuesIn(worlds_that_compare()),
                         CaseName());

TEST_P(ShapesCompared, CallsWithoutElementsAreComparedLikeOthers) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const TensorView nothing(nullptr, DType::f32, {0}, group.memory().device());
    expect_error(Errc::mismatch, {"all_reduce", "broadcast"}, [&] {
      if (group.rank() == 0)
        group.all_reduce(nothing);
      else
        group.broadcast(nothing, 0);
    });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
