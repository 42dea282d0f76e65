#include "group/validate.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/fingerprint.hpp"
#include "support/errors.hpp"

namespace tutti::internal {
namespace {

using test::expect_error;
using Kind = ReduceOp::Kind;

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

// Nothing is read or written: only addresses matter here.
alignas(64) std::array<std::byte, 4096> buffer;

TensorView at(std::size_t offset, const Shape& shape, DType dtype = DType::f32) {
  return {buffer.data() + offset, dtype, shape};
}
TensorView first(const Shape& shape, DType dtype = DType::f32) {
  return at(0, shape, dtype);
}
TensorView second(const Shape& shape, DType dtype = DType::f32) {
  return at(2048, shape, dtype);
}

// This rank is 1 of 3.
constexpr Bounds bounds{.rank = 1, .size = 3};

Op make(Operation kind, const ConstTensorView& in, const TensorView& out) {
  return {.kind = kind, .in = in, .out = out};
}
Op make(Operation kind, const ConstTensorView& in, const TensorView& out, Rows rows) {
  return {.kind = kind, .in = in, .out = out, .rows = rows};
}
Op rooted(Op op, int root) {
  op.root = root;
  return op;
}
Op reducing(Op op, ReduceOp reduce) {
  op.reduce = reduce;
  return op;
}
Op exchange(const ConstTensorView& in, const TensorView& out, Rows send_rows, Rows recv_rows) {
  return {.kind = Operation::all_to_all,
          .in = in,
          .out = out,
          .rows = recv_rows,
          .send_rows = send_rows};
}

void accept(Op op, const CallOptions& options = {}) {
  EXPECT_NO_THROW(validate(op, bounds, options)) << name_of(op.kind);
}
void refuse(Errc code, const std::vector<std::string>& texts, Op op,
            const CallOptions& options = {}) {
  SCOPED_TRACE(name_of(op.kind));
  expect_error(code, texts, [&] { validate(op, bounds, options); });
}
void refuse(const std::vector<std::string>& texts, const Op& op, const CallOptions& options = {}) {
  refuse(Errc::invalid_argument, texts, op, options);
}

constexpr std::array reductions{Operation::all_reduce, Operation::reduce, Operation::reduce_scatter,
                                Operation::scan, Operation::exclusive_scan};
constexpr std::array elementwise{Operation::all_reduce, Operation::scan, Operation::exclusive_scan};

/// A valid call of every operation, with this rank as the root if there is one.
Op correct(Operation kind) {
  switch (kind) {
    case Operation::all_reduce:
    case Operation::scan:
    case Operation::exclusive_scan:
      return make(kind, first({4}), second({4}));
    case Operation::broadcast:
      return rooted(make(kind, first({4}), first({4})), 1);
    case Operation::reduce:
      return rooted(make(kind, first({4}), second({4})), 1);
    case Operation::all_gather:
    case Operation::all_gather_bounded:
      return make(kind, first({2, 3}), second({6, 3}));
    case Operation::gather:
      return rooted(make(kind, first({2, 3}), second({6, 3})), 1);
    case Operation::reduce_scatter:
      return make(kind, first({6, 3}), second({2, 3}));
    case Operation::scatter:
      return rooted(make(kind, first({6, 3}), second({2, 3})), 1);
    case Operation::all_to_all:
      return make(kind, first({6, 3}), second({6, 3}));
    case Operation::barrier:
      return {.kind = kind};
    case Operation::send:
      return {.kind = kind, .in = first({4}), .peer = 0};
    case Operation::recv:
      return {.kind = kind, .out = first({4}), .peer = 0};
    case Operation::recv_any:
      break;  // No Op has it.
  }
  return {};
}

std::vector<Operation> all_operations() {
  std::vector<Operation> all;
  for (int o = 0; o < operation_count; ++o) all.push_back(static_cast<Operation>(o));
  return all;
}
bool uses_in(Operation o) {
  return o != Operation::barrier && o != Operation::recv;
}
/// On this rank, the root, and without broadcast, whose two arrays are one.
bool uses_out(Operation o) {
  return o != Operation::barrier && o != Operation::send && o != Operation::broadcast;
}

// One array.

TEST(Validate, RefusesAnUnknownDtype) {
  for (const Operation kind : all_operations()) {
    Op op = correct(kind);
    op.in.dtype = static_cast<DType>(77);
    if (uses_in(kind)) refuse({"dtype 77", std::to_string(dtype_count)}, op);
    op = correct(kind);
    op.out.dtype = static_cast<DType>(78);
    if (uses_out(kind)) refuse({"dtype 78", std::to_string(dtype_count)}, op);
  }
}

TEST(Validate, RefusesNullWithTheNumberOfBytesThatItShouldHave) {
  for (const Operation kind : all_operations()) {
    Op op = correct(kind);
    const auto texts = [](const auto& view) {
      return std::vector<std::string>{"null", to_string(view.shape), std::to_string(view.bytes())};
    };
    op.in.data = nullptr;
    if (uses_in(kind)) refuse(texts(op.in), op);
    op = correct(kind);
    op.out.data = nullptr;
    if (uses_out(kind)) refuse(texts(op.out), op);
  }
}

TEST(Validate, RefusesAnArrayOnAnotherDeviceWithBothDevices) {
  for (const Operation kind : all_operations()) {
    Op op = correct(kind);
    op.in.device = {DeviceType::cuda, 1};
    if (uses_in(kind)) refuse({"cuda:1", "cpu"}, op);
    op = correct(kind);
    op.out.device = {DeviceType::extension, 2};
    if (uses_out(kind)) refuse({"extension:2", "cpu"}, op);
  }
}

TEST(Validate, RefusesBytesThatOverflowWithBothFactors) {
  constexpr std::int64_t count = most / 8 + 1;
  const std::vector<std::string> texts{std::to_string(count), "8 bytes"};
  for (const Operation kind : elementwise)
    refuse(Errc::count_overflow, texts,
           make(kind, first({count}, DType::f64), first({count}, DType::f64)));
  refuse(Errc::count_overflow, texts,
         {.kind = Operation::send, .in = first({count}, DType::i64), .peer = 0});
  refuse(Errc::count_overflow, texts,
         {.kind = Operation::recv, .out = first({count}, DType::u64), .peer = 0});
  refuse(Errc::count_overflow, {std::to_string(most), "2 bytes"},
         rooted({.kind = Operation::broadcast, .in = first({most}, DType::f16)}, 0));
  accept(make(Operation::all_reduce, first({most}, DType::u8), first({most}, DType::u8)));
  accept(make(Operation::all_reduce, first({most / 8}, DType::f64), first({most / 8}, DType::f64)));
}

TEST(Validate, WithoutElementsAnyAddressAndDeviceIsRight) {
  const TensorView nowhere(nullptr, DType::f32, {0}, {DeviceType::cuda, 3});
  for (const Operation kind : elementwise) accept(make(kind, nowhere, nowhere));
  accept(rooted(make(Operation::broadcast, nowhere, nowhere), 2));
  accept(make(Operation::all_gather, nowhere, nowhere));
  accept(make(Operation::all_to_all, nowhere, nowhere));
  accept({.kind = Operation::send, .in = nowhere, .peer = 0});
}

// Two arrays.

TEST(Validate, RefusesDifferentDtypesWithBothNames) {
  for (const Operation kind : all_operations()) {
    if (!uses_in(kind) || !uses_out(kind)) continue;
    Op op = correct(kind);
    op.out.dtype = DType::i32;
    refuse({"f32", "i32"}, op);
  }
}

TEST(Validate, RefusesDifferentShapesElementwiseWithBothShapes) {
  for (const Operation kind :
       {Operation::all_reduce, Operation::scan, Operation::exclusive_scan, Operation::reduce}) {
    refuse({"[4]", "[5]"}, rooted(make(kind, first({4}), second({5})), 1));
    refuse({"[2, 3]", "[3, 2]"}, rooted(make(kind, first({2, 3}), second({3, 2})), 1));
    refuse({"[6]", "[6, 1]"}, rooted(make(kind, first({6}), second({6, 1})), 1));
    refuse({"[]", "[1]"}, rooted(make(kind, first({}), second({1})), 1));
  }
}

TEST(Validate, RefusesDifferentRowShapesWithBothShapes) {
  for (const Operation kind : {Operation::all_gather, Operation::gather}) {
    refuse({"[2, 3]", "[6, 4]"}, rooted(make(kind, first({2, 3}), second({6, 4})), 1));
    refuse({"[2, 3]", "[6]"}, rooted(make(kind, first({2, 3}), second({6})), 1));
    refuse({"[2, 6]", "[6, 2, 3]"}, rooted(make(kind, first({2, 6}), second({6, 2, 3})), 1));
  }
  for (const Operation kind : {Operation::reduce_scatter, Operation::scatter})
    refuse({"[6, 4]", "[2, 3]"}, rooted(make(kind, first({6, 4}), second({2, 3})), 1));
  refuse({"[6, 3]", "[6, 4]"}, make(Operation::all_to_all, first({6, 3}), second({6, 4})));
}

TEST(Validate, AScalarIsOneRowOfAGather) {
  accept(make(Operation::all_gather, first({}), second({3})));
  accept(make(Operation::reduce_scatter, first({3}), second({})));
}

// Memory that both arrays share.

TEST(Validate, ElementwiseCallsWorkInPlaceFromTheSameAddressOnly) {
  for (const Operation kind :
       {Operation::all_reduce, Operation::scan, Operation::exclusive_scan, Operation::reduce}) {
    accept(rooted(make(kind, at(64, {16}), at(64, {16})), 1));
    accept(rooted(make(kind, at(64, {16}), at(128, {16})), 1));  // Neighbours.
    accept(rooted(make(kind, at(128, {16}), at(64, {16})), 1));
    for (const std::size_t offset : {60U, 68U, 4U, 124U})
      refuse({"overlap", "same address"}, rooted(make(kind, at(64, {16}), at(offset, {16})), 1));
  }
}

TEST(Validate, APartMayBeItsOwnBlockOfTheWholeOnly) {
  const std::vector<std::int64_t> rows{1, 2, 3};
  // Rows of 3 floats: this rank's block begins 1 row, 12 bytes, into the whole.
  const auto gather = [&](Operation kind, std::size_t part) {
    return rooted(make(kind, at(part, {2, 3}), at(256, {6, 3}), rows), 1);
  };
  const auto scatter = [&](Operation kind, std::size_t part) {
    return rooted(make(kind, at(256, {6, 3}), at(part, {2, 3}), rows), 1);
  };
  for (const Operation kind : {Operation::all_gather, Operation::gather}) {
    accept(gather(kind, 256 + 12));
    accept(gather(kind, 256 - 24));
    accept(gather(kind, 256 + 72));
    for (const std::size_t wrong : {256U, 256U + 24U, 256U + 8U, 256U - 4U, 256U + 71U})
      refuse({"overlap", "own block"}, gather(kind, wrong));
  }
  for (const Operation kind : {Operation::reduce_scatter, Operation::scatter}) {
    accept(scatter(kind, 256 + 12));
    accept(scatter(kind, 256 - 24));
    for (const std::size_t wrong : {256U, 256U + 24U, 256U + 8U, 256U - 4U, 256U + 71U})
      refuse({"overlap", "own block"}, scatter(kind, wrong));
  }
}

TEST(Validate, AllToAllDoesNotWorkInPlace) {
  for (const std::size_t offset : {256U, 260U, 252U, 327U})
    refuse({"overlap", "in place"},
           make(Operation::all_to_all, at(256, {6, 3}), at(offset, {6, 3})));
  accept(make(Operation::all_to_all, at(256, {6, 3}), at(256 + 72, {6, 3})));
}

TEST(Validate, ArraysWithoutElementsOverlapNothing) {
  accept(make(Operation::all_reduce, at(64, {0}), at(64, {0})));
  const std::vector<std::int64_t> rows{2, 0, 4};
  accept(make(Operation::all_gather, at(256, {0, 3}), at(256, {6, 3}), rows));
  accept(make(Operation::all_to_all, at(256, {0, 3}), at(256, {0, 3})));
}

// Roots.

TEST(Validate, RefusesARootOutsideOfTheGroupWithItsRange) {
  for (const Operation kind :
       {Operation::broadcast, Operation::reduce, Operation::gather, Operation::scatter}) {
    refuse({"root is 3", "0 to 2"}, rooted(correct(kind), 3));
    refuse({"root is -1", "0 to 2"}, rooted(correct(kind), -1));
    accept(rooted(correct(kind), 1));
  }
}

TEST(Validate, ElsewhereThanOnTheRootTheWholeIsIgnoredAndBecomesEmpty) {
  const TensorView nonsense(nullptr, static_cast<DType>(99), {7, 7}, {DeviceType::cuda, 9});
  for (const int root : {0, 2}) {
    for (const Operation kind : {Operation::reduce, Operation::gather}) {
      Op op = rooted(make(kind, first({4}), nonsense), root);
      EXPECT_NO_THROW(validate(op, bounds, {}));
      EXPECT_EQ(op.out.data, nullptr);
      EXPECT_EQ(op.out.bytes(), 0U);
    }
    Op op = rooted(make(Operation::scatter, nonsense, first({4})), root);
    EXPECT_NO_THROW(validate(op, bounds, {}));
    EXPECT_EQ(op.in.data, nullptr);
    EXPECT_EQ(op.in.bytes(), 0U);
  }
}

// Options.

TEST(Validate, RefusesANegativeTimeout) {
  for (const Operation kind : {Operation::all_reduce, Operation::barrier, Operation::send}) {
    refuse({"timeout is -5 ns", ">= 0", "the group's timeout"}, correct(kind),
           {.timeout = std::chrono::nanoseconds(-5)});
    accept(correct(kind), {.timeout = std::chrono::nanoseconds(5)});
  }
}

// Reduce ops.

TEST(Validate, RefusesAnUnknownReduceOp) {
  for (const Operation kind : reductions)
    for (const int value : {reduce_op_count, 255})
      refuse({std::to_string(value), std::to_string(reduce_op_count)},
             reducing(correct(kind), {static_cast<Kind>(value), 1}));
}

TEST(Validate, TheReduceOpOfOtherOperationsIsNotLookedAt) {
  for (const Operation kind : {Operation::broadcast, Operation::all_gather, Operation::all_to_all,
                               Operation::gather, Operation::scatter, Operation::barrier})
    accept(reducing(correct(kind), ReduceOp::bxor));
}

TEST(Validate, ABoundedGatherHasRoomForTheRowsOfThisRank) {
  Op op = make(Operation::all_gather_bounded, first({2, 3}), second({15, 3}));
  validate(op, bounds, {});
  EXPECT_EQ(op.rows[0], 5);
  accept(make(Operation::all_gather_bounded, first({0, 3}), second({0, 3})));
  refuse({"in is [2, 3]", "out [3, 3] has room for 1"},
         make(Operation::all_gather_bounded, first({2, 3}), second({3, 3})));
  refuse({"7 rows", "multiple of 3"},
         make(Operation::all_gather_bounded, first({2, 3}), second({7, 3})));
  refuse({"[2, 3]", "[6, 4]"}, make(Operation::all_gather_bounded, first({2, 3}), second({6, 4})));
}

// Rows.

/// The gather-like operations with this rank's part and the whole.
Op with_rows(Operation kind, const Shape& part, const Shape& whole, Rows rows) {
  const bool gathers = kind == Operation::all_gather || kind == Operation::gather;
  return rooted(gathers ? make(kind, first(part), second(whole), rows)
                        : make(kind, first(whole), second(part), rows),
                1);
}
constexpr std::array by_rows{Operation::all_gather, Operation::gather, Operation::reduce_scatter,
                             Operation::scatter};

TEST(Validate, FillsInRowsThatTheCallerLeftOut) {
  for (const Operation kind : by_rows) {
    Op op = with_rows(kind, {2, 3}, {6, 3}, {});
    validate(op, bounds, {});
    EXPECT_TRUE(op.rows.given());
    EXPECT_FALSE(op.rows.listed());
    EXPECT_EQ(op.rows[1], 2);
  }
  Op op = exchange(first({6}), second({9}), Rows(2), Rows(3));
  op.send_rows = {};
  op.rows = {};
  op.out = second({6});
  validate(op, bounds, {});
  EXPECT_EQ(op.send_rows[0], 2);
  EXPECT_EQ(op.rows[0], 2);
}

TEST(Validate, RefusesRowsOfAnotherNumberOfRanks) {
  for (const Operation kind : by_rows)
    for (const std::size_t entries : {0U, 2U, 4U}) {
      const std::vector<std::int64_t> rows(entries, 2);
      refuse({"rows", std::to_string(entries) + " entries", "world size is 3"},
             with_rows(kind, {2}, {6}, rows));
    }
  const std::vector<std::int64_t> two(2, 2);
  refuse({"send_rows", "2 entries", "world size is 3"},
         exchange(first({6}), second({6}), two, Rows(2)));
  refuse({"recv_rows", "2 entries", "world size is 3"},
         exchange(first({6}), second({6}), Rows(2), two));
}

TEST(Validate, RefusesNegativeRowsByPlaceAndValue) {
  const std::vector<std::int64_t> rows{2, 2, -7};
  for (const Operation kind : by_rows) {
    refuse({"rows[2]", "-7"}, with_rows(kind, {2}, {6}, rows));
    refuse({"rows", "-7"}, with_rows(kind, {2}, {6}, Rows(-7)));
  }
  refuse({"send_rows[2]", "-7"}, exchange(first({6}), second({6}), rows, Rows(2)));
  refuse({"recv_rows[2]", "-7"}, exchange(first({6}), second({6}), Rows(2), rows));
  refuse({"send_rows", "-7"}, exchange(first({6}), second({6}), Rows(-7), Rows(2)));
  refuse({"recv_rows", "-7"}, exchange(first({6}), second({6}), Rows(2), Rows(-7)));
}

TEST(Validate, RefusesRowsThatOverflowWithBothNumbers) {
  const std::vector<std::int64_t> rows{most, 2, 1};
  const std::vector<std::string> sum{std::to_string(most), "+ 2"};
  const std::vector<std::string> product{std::to_string(most / 2), "3 ranks"};
  for (const Operation kind : by_rows) {
    refuse(Errc::count_overflow, sum, with_rows(kind, {2}, {6}, rows));
    refuse(Errc::count_overflow, product, with_rows(kind, {2}, {6}, Rows(most / 2)));
  }
  refuse(Errc::count_overflow, sum, exchange(first({6}), second({6}), rows, Rows(2)));
  refuse(Errc::count_overflow, sum, exchange(first({6}), second({6}), Rows(2), rows));
  refuse(Errc::count_overflow, product, exchange(first({6}), second({6}), Rows(most / 2), Rows(2)));
  // The part's own rows times the number of ranks, by default.
  refuse(Errc::count_overflow, {std::to_string(most), "3 ranks"},
         make(Operation::all_gather, first({most}, DType::u8), second({6}, DType::u8)));
}

TEST(Validate, RefusesAPartThatContradictsTheRowsWithBothNumbers) {
  const std::vector<std::int64_t> rows{1, 4, 1};
  for (const Operation kind : by_rows) {
    refuse({"[2]", "2 rows", "4"}, with_rows(kind, {2}, {6}, rows));
    refuse({"[2]", "2 rows", "5"}, with_rows(kind, {2}, {6}, Rows(5)));
  }
}

TEST(Validate, RefusesAWholeThatContradictsTheRowsWithBothNumbers) {
  const std::vector<std::int64_t> rows{1, 2, 4};
  for (const Operation kind : by_rows) {
    refuse({"[6]", "6 rows", "7"}, with_rows(kind, {2}, {6}, rows));
    refuse({"[7]", "7 rows", "6"}, with_rows(kind, {2}, {7}, Rows(2)));
    refuse({"[7]", "7 rows", "6"}, with_rows(kind, {2}, {7}, {}));
    accept(with_rows(kind, {2}, {7}, rows));
  }
}

TEST(Validate, ElsewhereThanOnTheRootRowsAreCheckedAgainstThePartAlone) {
  const std::vector<std::int64_t> rows{1, 4, 1};
  for (const int root : {0, 2}) {
    Op gather = rooted(make(Operation::gather, first({2}), {}, rows), root);
    refuse({"2 rows", "4"}, gather);
    Op scatter = rooted(make(Operation::scatter, {}, first({2}), rows), root);
    refuse({"2 rows", "4"}, scatter);
  }
}

TEST(Validate, AllToAllRowsHaveToAddUpToTheirArray) {
  const std::vector<std::int64_t> rows{1, 2, 4};
  accept(exchange(first({7}), second({6}), rows, Rows(2)));
  refuse({"send_rows", "[6]", "6 rows", "7"}, exchange(first({6}), second({6}), rows, Rows(2)));
  refuse({"recv_rows", "[6]", "6 rows", "7"}, exchange(first({6}), second({6}), Rows(2), rows));
}

TEST(Validate, AllToAllWithoutRowsHasToDivideWithBothNumbers) {
  refuse({"[7]", "7 rows", "3 ranks", "send_rows"}, exchange(first({7}), second({6}), {}, {}));
  refuse({"[8]", "8 rows", "3 ranks", "recv_rows"}, exchange(first({6}), second({8}), {}, {}));
}

TEST(Validate, AllToAllSendsItselfWhatItExpectsOfItself) {
  const std::vector<std::int64_t> send{1, 4, 1};
  const std::vector<std::int64_t> recv{1, 3, 2};
  refuse({"4 rows", "expects 3", "[1]"}, exchange(first({6}), second({6}), send, recv));
}

TEST(Validate, RefusesAnUnknownOperation) {
  for (const int value : {operation_count, 255})
    refuse({std::to_string(value), std::to_string(operation_count)},
           Op{.kind = static_cast<Operation>(value)});
}

}  // namespace
}  // namespace tutti::internal
