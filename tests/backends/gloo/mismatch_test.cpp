// Ranks with different calls in normal mode, which does not compare them: no rank crashes, and none
// succeeds with wrong data. A call that does not need the other rank's data may succeed.

#include <algorithm>
#include <span>
#include <string>

#include <fmt/format.h>

#include "conformance/cells.hpp"
#include "rank_processes.hpp"
#include "support/gather_bounded.hpp"

namespace tutti::test {
namespace {

struct Spec {
  Operation operation = Operation::all_reduce;
  DType dtype = DType::i32;
  std::int64_t rows = 6;
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;
};

std::string to_string(const Spec& s) {
  return fmt::format("{} of {} {}, {}, root {}", name_of(s.operation), s.rows, name_of(s.dtype),
                     name_of(s.reduce.kind), s.root);
}

/// Every rank's input, as they are when all ranks make this call.
std::vector<Array> inputs_of(const Spec& spec, std::int64_t rows, int size) {
  return make_inputs(spec.dtype, {rows}, size, Fill::exact, spec.reduce.kind);
}

/// Makes the call. True when it succeeded; its result is then right for this rank's arguments.
bool issue(ProcessGroup& group, const Spec& s) {
  const int n = group.size();
  const int me = group.rank();
  const std::int64_t whole = s.rows * n;
  const auto parts = inputs_of(s, s.rows, n);
  const auto wholes = inputs_of(s, whole, n);
  const Buffer part(group, parts[index(me)]);
  const Buffer whole_in(group, wholes[index(me)]);
  const Buffer out(group, s.dtype, {s.rows});
  const Buffer whole_out(group, s.dtype, {whole});
  const CallOptions options{.deadline = 100ms};
  try {
    switch (s.operation) {
      case Operation::all_reduce:
        group.all_reduce(part, out, s.reduce, options);
        EXPECT_TRUE(same(out.read(), reduce_in_order(s.reduce.kind, parts)));
        break;
      case Operation::broadcast:
        group.broadcast(part, s.root, options);
        EXPECT_TRUE(same(part.read(), parts[index(s.root)]));
        break;
      case Operation::reduce:
        group.reduce(part, out, s.root, s.reduce, options);
        if (me == s.root) {
          EXPECT_TRUE(same(out.read(), reduce_in_order(s.reduce.kind, parts)));
        }
        break;
      case Operation::all_gather:
        group.all_gather(part, whole_out, {}, options);
        EXPECT_TRUE(same(whole_out.read(), concat(parts)));
        break;
      case Operation::all_gather_bounded:
        gather_bounded(group, part, whole_out, options);
        EXPECT_TRUE(same(whole_out.read(), concat(parts)));
        break;
      case Operation::reduce_scatter:
        group.reduce_scatter(whole_in, out, {}, s.reduce, options);
        EXPECT_TRUE(
            same(out.read(), reduce_in_order(s.reduce.kind, wholes).rows(me * s.rows, s.rows)));
        break;
      case Operation::all_to_all: {
        group.all_to_all(whole_in, whole_out, {}, {}, options);
        std::vector<Array> want;
        for (const auto& from : wholes) want.push_back(from.rows(me * s.rows, s.rows));
        EXPECT_TRUE(same(whole_out.read(), concat(want)));
        break;
      }
      case Operation::gather:
        group.gather(part, whole_out, s.root, {}, options);
        if (me == s.root) {
          EXPECT_TRUE(same(whole_out.read(), concat(parts)));
        }
        break;
      case Operation::scatter:
        group.scatter(whole_in, out, s.root, {}, options);
        EXPECT_TRUE(same(out.read(), wholes[index(s.root)].rows(me * s.rows, s.rows)));
        break;
      case Operation::scan: {
        group.scan(part, out, s.reduce, options);
        const std::span<const Array> before(parts);
        EXPECT_TRUE(same(out.read(), reduce_in_order(s.reduce.kind, before.first(index(me) + 1))));
        break;
      }
      case Operation::exclusive_scan: {
        group.exclusive_scan(part, out, s.reduce, options);
        const std::span<const Array> before(parts);
        EXPECT_TRUE(
            same(out.read(), me == 0 ? identity(s.reduce.kind, s.dtype, {s.rows})
                                     : reduce_in_order(s.reduce.kind, before.first(index(me)))));
        break;
      }
      case Operation::barrier:
        group.barrier(options);
        break;
      case Operation::send:
      case Operation::recv:
      case Operation::recv_any:
        ADD_FAILURE() << "no collective";
    }
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == Errc::timeout || error.code() == Errc::aborted ||
                error.code() == Errc::peer_lost || error.code() == Errc::mismatch)
        << error.what();
    return false;
  }
  return true;
}

bool has_reduce(Operation o) {
  return o == Operation::all_reduce || o == Operation::reduce || o == Operation::reduce_scatter ||
         o == Operation::scan || o == Operation::exclusive_scan;
}
bool has_root(Operation o) {
  return o == Operation::broadcast || o == Operation::reduce || o == Operation::gather ||
         o == Operation::scatter;
}
bool waits_for_all_ranks(Operation o) {
  return o == Operation::all_reduce || o == Operation::all_gather ||
         o == Operation::all_gather_bounded || o == Operation::reduce_scatter ||
         o == Operation::all_to_all || o == Operation::barrier;
}

void expect_no_wrong_success(const Spec& zero, const Spec& others) {
  SCOPED_TRACE("rank 0: " + to_string(zero) + "; the others: " + to_string(others));
  const World world{.backend = tested_backend(), .size = 3};
  PerRank<int> succeeded(world.size);
  on_fresh_ranks(world, [&](ProcessGroup& group) {
    const Spec& mine = group.rank() == 0 ? zero : others;
    succeeded[group.rank()] = issue(group, mine) ? 1 : 0;
    // Without elements there is nothing to wait for.
    if (mine.rows != 0 && waits_for_all_ranks(mine.operation)) {
      EXPECT_EQ(succeeded[group.rank()], 0) << "it waits for a rank that never came";
    }
  });
}

class GlooMismatch : public testing::TestWithParam<Operation> {};

std::vector<Operation> collectives() {
  std::vector<Operation> all;
  for (int o = 0; o < operation_count; ++o)
    if (!is_point_to_point(static_cast<Operation>(o))) all.push_back(static_cast<Operation>(o));
  return all;
}
struct OperationName {
  std::string operator()(const testing::TestParamInfo<Operation>& info) const {
    return std::string(name_of(info.param));
  }
};
INSTANTIATE_TEST_SUITE_P(Operations, GlooMismatch, testing::ValuesIn(collectives()),
                         OperationName());
class SlowGlooMismatch : public GlooMismatch {};
INSTANTIATE_TEST_SUITE_P(SlowOperations, SlowGlooMismatch, testing::ValuesIn(collectives()),
                         OperationName());

/// Operations that are one exchange for small arrays and several messages for large ones.
constexpr std::int64_t few = 6;
constexpr std::int64_t many = 200'000;

void expect_no_wrong_success_in_arguments(Operation operation, std::int64_t rows) {
  const Spec base{.operation = operation, .rows = rows};
  Spec other = base;
  for (const std::int64_t count : {rows / 2, rows + 1, std::int64_t{0}}) {
    other.rows = count;
    expect_no_wrong_success(base, other);
    expect_no_wrong_success(other, base);
  }
  other = base;
  other.dtype = DType::f32;  // Of the same size.
  expect_no_wrong_success(base, other);
  other.dtype = DType::i64;
  expect_no_wrong_success(base, other);
  if (has_reduce(operation)) {
    other = base;
    other.reduce = ReduceOp::max;
    expect_no_wrong_success(base, other);
  }
  if (has_root(operation)) {
    other = base;
    other.root = 1;
    expect_no_wrong_success(base, other);
    expect_no_wrong_success(other, base);
  }
}

TEST_P(GlooMismatch, OfOperationsNeverSucceedsWithWrongData) {
  const auto all = collectives();
  const auto mine = std::ranges::find(all, GetParam()) - all.begin();
  for (const int step : {1, 4})  // The slow test has all.
    expect_no_wrong_success(
        {.operation = GetParam()},
        {.operation = all[static_cast<std::size_t>((mine + step) % std::ssize(all))]});
}

/// Rank 0 sends `sent` rows to rank 1, which expects others. Rank 0 may succeed, because it needs
/// nothing of rank 1.
void expect_counts_are_compared(std::int64_t sent, std::int64_t expected) {
  SCOPED_TRACE(fmt::format("{} rows are sent, {} expected", sent, expected));
  const World world{.backend = tested_backend(), .size = 2};
  on_fresh_ranks(world, [&](ProcessGroup& group) {
    const bool sends = group.rank() == 0;
    const Layout send{0, sends ? sent : 0};
    const Layout recv{sends ? 0 : expected, 0};
    const Buffer in(group, DType::i64, {total(send)});
    const Buffer out(group, DType::i64, {total(recv)});
    const auto call = [&] { group.all_to_all(in, out, send, recv); };
    if (sends) {
      try {
        call();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::mismatch) << error.what();
      }
    } else {
      expect_error(Errc::mismatch, {"all_to_all", fmt::format("rank 0 sends {} rows", sent)}, call);
    }
    EXPECT_THROW(group.barrier(), Error);
  });
}

TEST(MeshMismatch, CountsOfAnAllToAllAreComparedBeforeDataMoves) {
  expect_counts_are_compared(3, 0);
  expect_counts_are_compared(0, 3);
  constexpr std::int64_t message = std::int64_t{4} << 17;  // Rows of 8 bytes.
  expect_counts_are_compared(2 * message, message);
  expect_counts_are_compared(message + 1, message);
}

TEST_P(SlowGlooMismatch, OfOperationsNeverSucceedsWithWrongData) {
  for (const Operation other : collectives())
    for (const std::int64_t rows : {few, many})
      if (other != GetParam())
        expect_no_wrong_success({.operation = GetParam(), .rows = rows},
                                {.operation = other, .rows = rows});
}

TEST_P(SlowGlooMismatch, OfArgumentsNeverSucceedsWithWrongData) {
  if (GetParam() == Operation::barrier) GTEST_SKIP() << "it has none";
  expect_no_wrong_success_in_arguments(GetParam(), few);
  expect_no_wrong_success_in_arguments(GetParam(), many);
}

}  // namespace
}  // namespace tutti::test
