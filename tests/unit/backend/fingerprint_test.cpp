#include "backend/fingerprint.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "group/core.hpp"
#include "group/validate.hpp"

namespace tutti::internal {
namespace {

alignas(64) std::array<std::byte, 1 << 16> buffer;

TensorView first(const Shape& shape, DType dtype = DType::f32) {
  return {buffer.data(), dtype, shape};
}
TensorView second(const Shape& shape, DType dtype = DType::f32) {
  return {buffer.data() + buffer.size() / 2, dtype, shape};
}

constexpr Bounds bounds{.rank = 1, .size = 3};

/// The fingerprint of a launched call, after the checks have filled in the rows.
std::uint64_t fingerprint(Op op, const CallOptions& options = {}, const Bounds& on = bounds) {
  validate(op, on, options);
  Hash hash;
  add(hash, op);
  return finish_hash(hash, {.order_fixed = options.order_fixed, .name = options.name});
}

/// A call of each operation with 2 rows per rank.
Op call_of(Operation kind, const Shape& row = {3}, DType dtype = DType::f32, Rows rows = {},
           int root = 1, ReduceOp reduce = ReduceOp::sum) {
  std::vector<std::int64_t> dims{2};
  dims.insert(dims.end(), row.dims().begin(), row.dims().end());
  const Shape part{std::span<const std::int64_t>(dims)};
  std::int64_t total = 6;
  if (rows.listed()) total = rows.offset(3);
  const Shape whole = part.with_rows(total);
  Op op{.kind = kind, .reduce = reduce};
  switch (kind) {
    case Operation::all_gather:
    case Operation::all_gather_bounded:
    case Operation::gather:
      op.in = first(part, dtype);
      op.out = second(whole, dtype);
      op.rows = rows;
      break;
    case Operation::reduce_scatter:
    case Operation::scatter:
      op.in = first(whole, dtype);
      op.out = second(part, dtype);
      op.rows = rows;
      break;
    case Operation::all_to_all:
      op.in = first(whole, dtype);
      op.out = second(whole, dtype);
      op.rows = op.send_rows = rows;
      break;
    case Operation::barrier:
      break;
    case Operation::recv:
      op.out = first(part, dtype);
      op.peer = 0;
      break;
    case Operation::send:
      op.in = first(part, dtype);
      op.peer = 0;
      break;
    default:
      op.in = first(part, dtype);
      op.out = second(part, dtype);
  }
  if (kind == Operation::broadcast || kind == Operation::reduce || kind == Operation::gather ||
      kind == Operation::scatter)
    op.root = root;
  return op;
}

std::vector<Operation> collectives() {
  std::vector<Operation> all;
  for (int o = 0; o < operation_count; ++o)
    if (!is_point_to_point(static_cast<Operation>(o))) all.push_back(static_cast<Operation>(o));
  return all;
}
bool has_array(Operation o) {
  return o != Operation::barrier;
}

bool has_rows(Operation o) {
  return o == Operation::all_gather || o == Operation::gather || o == Operation::reduce_scatter ||
         o == Operation::scatter;
}

TEST(Fingerprint, DtypesDiffer) {
  for (const Operation kind : collectives()) {
    if (!has_array(kind)) continue;
    std::set<std::uint64_t> seen;
    for (int d = 0; d < dtype_count; ++d)
      seen.insert(fingerprint(call_of(kind, {3}, static_cast<DType>(d))));
    EXPECT_EQ(seen.size(), std::size_t{dtype_count}) << name_of(kind);
  }
}

TEST(Fingerprint, ReduceOpsDifferWhereThereIsOne) {
  const CustomReduce nothing = [](const void*, void*, std::int64_t, DType, void*) {};
  for (const Operation kind : collectives()) {
    std::set<std::uint64_t> seen;
    const auto kinds = {ReduceOp::sum,
                        ReduceOp::prod,
                        ReduceOp::min,
                        ReduceOp::max,
                        ReduceOp::premul(2),
                        ReduceOp::custom(nothing, false),
                        ReduceOp::custom(nothing, true)};
    for (const ReduceOp& reduce : kinds)
      seen.insert(fingerprint(call_of(kind, {3}, DType::f32, {}, 1, reduce)));
    EXPECT_EQ(seen.size(), is_reduction(kind) ? kinds.size() : 1U) << name_of(kind);
  }
}

TEST(Fingerprint, TheFunctionOfACustomReductionIsNotCompared) {
  int context = 0;
  const CustomReduce one = [](const void*, void*, std::int64_t, DType, void*) {};
  const CustomReduce other = [](const void*, void*, std::int64_t, DType, void*) { std::abort(); };
  const auto of = [](const ReduceOp& op) {
    return fingerprint(call_of(Operation::all_reduce, {3}, DType::f32, {}, 1, op));
  };
  EXPECT_EQ(of(ReduceOp::custom(one, true)), of(ReduceOp::custom(other, true, &context)));
}

// Arguments that differ between the root and other ranks must not change it.
TEST(Fingerprint, IsEqualOnTheRootAndElsewhere) {
  const std::vector<std::int64_t> rows{2, 2, 2};
  for (const Operation kind : collectives())
    for (int root = 0; root < 3; ++root) {
      std::set<std::uint64_t> seen;
      for (int rank = 0; rank < 3; ++rank)
        for (const Rows& r : {Rows(), Rows(2), Rows(rows)})
          seen.insert(
              fingerprint(call_of(kind, {3}, DType::f32, r, root), {}, {.rank = rank, .size = 3}));
      EXPECT_EQ(seen.size(), 1U) << name_of(kind) << " root " << root;
    }
}

TEST(Fingerprint, ShapesDiffer) {
  for (const Operation kind : collectives()) {
    if (!has_array(kind)) continue;
    std::map<std::uint64_t, std::string> seen;
    for (const Shape& row : {Shape{3}, Shape{4}, Shape{}, Shape{1}, Shape{3, 1}, Shape{1, 3},
                             Shape{3, 2}, Shape{2, 3}, Shape{6}, Shape{2, 3, 1}}) {
      const auto [at, added] = seen.emplace(fingerprint(call_of(kind, row)), to_string(row));
      EXPECT_TRUE(added) << name_of(kind) << " rows " << to_string(row) << " and " << at->second;
    }
  }
}

TEST(Fingerprint, CountsDifferWhereEveryRankKnowsThem) {
  const std::vector<std::vector<std::int64_t>> layouts{{2, 2, 2}, {1, 2, 3}, {3, 2, 1},
                                                       {0, 2, 0}, {4, 2, 0}, {0, 2, 4}};
  for (const Operation kind : collectives()) {
    if (!has_rows(kind)) continue;
    std::set<std::uint64_t> seen;
    for (const auto& rows : layouts) seen.insert(fingerprint(call_of(kind, {3}, DType::f32, rows)));
    EXPECT_EQ(seen.size(), layouts.size()) << name_of(kind);
  }
}

TEST(Fingerprint, NamesAndOrderFixedDiffer) {
  for (const Operation kind : collectives()) {
    std::set<std::uint64_t> seen;
    const std::vector<std::string> names{"",
                                         "a",
                                         "b",
                                         "ab",
                                         "ba",
                                         "aaaaaaaa",
                                         "aaaaaaaaa",
                                         std::string("a\0", 2),
                                         std::string(100, 'a')};
    for (const auto& name : names)
      for (const bool fixed : {false, true})
        seen.insert(fingerprint(call_of(kind), {.order_fixed = fixed, .name = name}));
    EXPECT_EQ(seen.size(), 2 * names.size()) << name_of(kind);
  }
}

// The fields of a call are hashed without separators: the end of one must not count as the
// beginning of the next.
TEST(Fingerprint, OnePartOfACallIsNeverTakenForAnother) {
  const auto gather = [](const Shape& in, const CallOptions& options) {
    return fingerprint({.kind = Operation::all_gather,
                        .in = first(in),
                        .out = second(in.with_rows(3 * in.rows()))},
                       options);
  };
  EXPECT_NE(gather({5}, {.order_fixed = true}), gather({1, 5}, {}));
  EXPECT_NE(gather({5}, {.name = "x"}), gather({'x', 5, 1}, {}));
  EXPECT_NE(gather({4, 5}, {}), gather({5, 4}, {}));
  const auto reduce = [](const Shape& shape, const CallOptions& options) {
    return fingerprint({.kind = Operation::all_reduce, .in = first(shape), .out = first(shape)},
                       options);
  };
  EXPECT_NE(reduce({5}, {.order_fixed = true}), reduce({5, 1}, {}));
  EXPECT_NE(reduce({5}, {.name = "x"}), reduce({5, 1, 'x'}, {}));
}

TEST(Fingerprint, SendAndReceiveOfTheSameArrayAreEqual) {
  const auto send = [](const Shape& shape, DType dtype = DType::f32) {
    return fingerprint({.kind = Operation::send, .in = first(shape, dtype), .peer = 0, .tag = 4});
  };
  const auto recv = [](const Shape& shape, DType dtype = DType::f32) {
    return fingerprint({.kind = Operation::recv, .out = first(shape, dtype), .peer = 2, .tag = 4});
  };
  EXPECT_EQ(send({2, 3}), recv({2, 3}));
  EXPECT_EQ(send({2, 3}), recv({6})) << "the count has to be equal, the shape not";
  EXPECT_NE(send({6}), recv({7}));
  EXPECT_NE(send({6}), recv({6}, DType::i32));
  EXPECT_NE(send({0}), recv({6}));
}

}  // namespace
}  // namespace tutti::internal
