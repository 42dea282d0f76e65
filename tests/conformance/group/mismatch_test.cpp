#include <algorithm>

#include <tutti/coalesce.hpp>

#include "conformance/cells.hpp"
#include "support/gather_bounded.hpp"

// Ranks that disagree about a call: every rank gets an error that names both sides, and the group
// stays usable. Rank 0 makes one call, the other ranks another.

namespace tutti::test {
namespace {

/// One collective; two of them can differ in one property.
struct Spec {
  Operation operation = Operation::barrier;
  DType dtype = DType::f32;
  std::int64_t rows = 2;  ///< Rows of each rank, or of the whole array if it has no parts.
  Shape row_shape{3};
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;
  bool uneven = false;  ///< One row more on the last rank, one less on the first.
  std::string_view name{};
  bool order_fixed = false;
  bool reproducible = false;
};

bool has_parts(Operation o) {
  return o == Operation::all_gather || o == Operation::gather || o == Operation::reduce_scatter ||
         o == Operation::scatter || o == Operation::all_to_all;
}
bool has_root(Operation o) {
  return o == Operation::broadcast || o == Operation::reduce || o == Operation::gather ||
         o == Operation::scatter;
}
bool has_reduce(Operation o) {
  return o == Operation::all_reduce || o == Operation::reduce || o == Operation::reduce_scatter ||
         o == Operation::scan || o == Operation::exclusive_scan;
}

/// Makes the call and waits for it, blocking or not.
void issue(ProcessGroup& group, const Spec& spec, bool async) {
  Layout layout(index(group.size()), spec.rows);
  if (spec.uneven) {
    --layout.front();
    ++layout.back();
  }
  const std::int64_t own = has_parts(spec.operation) ? layout[index(group.rank())] : spec.rows;
  const Buffer part(group, spec.dtype, rows_of(own, spec.row_shape));
  const Buffer part_out(group, spec.dtype, rows_of(own, spec.row_shape));
  const Buffer whole(group, spec.dtype, rows_of(total(layout), spec.row_shape));
  const Buffer whole_out(group, spec.dtype, rows_of(total(layout), spec.row_shape));
  const CallOptions options{
      .order_fixed = spec.order_fixed, .reproducible = spec.reproducible, .name = spec.name};
  Work work;
  switch (spec.operation) {
    case Operation::all_reduce:
      if (!async) return group.all_reduce(part, part_out, spec.reduce, options);
      work = group.all_reduce_async(part, part_out, spec.reduce, options);
      break;
    case Operation::broadcast:
      if (!async) return group.broadcast(part, spec.root, options);
      work = group.broadcast_async(part, spec.root, options);
      break;
    case Operation::reduce:
      if (!async) return group.reduce(part, part_out, spec.root, spec.reduce, options);
      work = group.reduce_async(part, part_out, spec.root, spec.reduce, options);
      break;
    case Operation::all_gather:
      if (!async) return group.all_gather(part, whole, layout, options);
      work = group.all_gather_async(part, whole, layout, options);
      break;
    case Operation::all_gather_bounded:
      if (!async) return gather_bounded(group, part, whole, options);
      work = gather_bounded_async(group, part, whole, options);
      break;
    case Operation::reduce_scatter:
      if (!async) return group.reduce_scatter(whole, part, layout, spec.reduce, options);
      work = group.reduce_scatter_async(whole, part, layout, spec.reduce, options);
      break;
    case Operation::all_to_all:
      if (!async) return group.all_to_all(whole, whole_out, layout, layout, options);
      work = group.all_to_all_async(whole, whole_out, layout, layout, options);
      break;
    case Operation::gather:
      if (!async) return group.gather(part, whole, spec.root, layout, options);
      work = group.gather_async(part, whole, spec.root, layout, options);
      break;
    case Operation::scatter:
      if (!async) return group.scatter(whole, part, spec.root, layout, options);
      work = group.scatter_async(whole, part, spec.root, layout, options);
      break;
    case Operation::scan:
      if (!async) return group.scan(part, part_out, spec.reduce, options);
      work = group.scan_async(part, part_out, spec.reduce, options);
      break;
    case Operation::exclusive_scan:
      if (!async) return group.exclusive_scan(part, part_out, spec.reduce, options);
      work = group.exclusive_scan_async(part, part_out, spec.reduce, options);
      break;
    case Operation::barrier:
      if (!async) return group.barrier(options);
      work = group.barrier_async(options);
      break;
    case Operation::send:
    case Operation::recv:
    case Operation::recv_any:
      FAIL() << "no collective";
  }
  work.wait();
}

std::vector<Operation> collectives() {
  std::vector<Operation> all;
  for (int o = 0; o < operation_count; ++o)
    if (!is_point_to_point(static_cast<Operation>(o))) all.push_back(static_cast<Operation>(o));
  return all;
}

/// A difference of two calls, and the texts that describe it.
struct Difference {
  std::string name;
  Spec zero;    ///< Text of rank 0's call.
  Spec others;  ///< Text of the other ranks' call.
  std::vector<std::string> texts;
};

std::vector<Difference> differences_of(Operation operation) {
  const Spec base{.operation = operation};
  std::vector<Difference> all;
  const auto add = [&](const char* name, const Spec& zero, const Spec& others,
                       std::vector<std::string> texts) {
    texts.emplace_back(name_of(operation));
    all.push_back({name, zero, others, std::move(texts)});
  };
  Spec a = base;
  Spec b = base;
  a.name = "alpha", b.name = "beta";
  add("names", a, b, {"alpha", "beta"});
  add("name_and_none", base, b, {"beta"});
  if (operation == Operation::barrier) return all;
  a = b = base;
  a.rows = 521, b.rows = 734;
  add("counts", a, b, {"521", "734"});
  b = base;
  b.dtype = DType::i32;
  add("dtypes", base, b, {"f32", "i32"});
  b = base;
  b.row_shape = {777};
  add("row_shapes", base, b, {"3]", "777]"});
  a = b = base;
  a.row_shape = {5, 7}, b.row_shape = {7, 5};
  add("row_shapes_of_one_count", a, b, {"5, 7]", "7, 5]"});
  if (has_root(operation)) {
    b = base;
    b.root = 1;
    add("roots", base, b, {"root 0", "root 1"});
  }
  if (has_reduce(operation)) {
    b = base;
    b.reduce = ReduceOp::max;
    add("reduce_ops", base, b, {"sum", "max"});
    b = base;
    b.order_fixed = true;
    add("order_fixed", base, b, {"order_fixed"});
    b = base;
    b.reproducible = true;
    add("reproducible", base, b, {"sum reproducible"});
  }
  if (has_parts(operation)) {
    b = base;
    b.uneven = true;
    add("rows", base, b, {"rows"});
  }
  return all;
}

/// Makes every rank's call and checks that all get the same kind of error.
void expect_mismatch(const World& world, const Spec& zero, const Spec& others,
                     const std::vector<std::string>& texts) {
  on_ranks(world, [&](ProcessGroup& group) {
    const Spec& mine = group.rank() == 0 ? zero : others;
    for (const bool async : {false, true}) {
      const Error error = expect_error(Errc::mismatch, texts, [&] { issue(group, mine, async); });
      EXPECT_EQ(error.where().group, group.name());
      // The same error on every rank, so its place is one of the calls.
      EXPECT_TRUE(error.where().operation == name_of(zero.operation) ||
                  error.where().operation == name_of(others.operation))
          << error.where().operation;
      EXPECT_GE(error.where().seq, 0);
    }
    expect_usable(group);
  });
}

// Operation against operation.

struct OperationPair {
  World world;
  Operation zero = Operation::barrier;
  Operation others = Operation::barrier;
};
std::string to_string(const OperationPair& pair) {
  return to_string(pair.world) + "_" + std::string(name_of(pair.zero)) + "_and_" +
         std::string(name_of(pair.others));
}
std::ostream& operator<<(std::ostream& out, const OperationPair& pair) {
  return out << to_string(pair);
}
std::vector<OperationPair> operation_pairs() {
  std::vector<OperationPair> pairs;
  for (const World& world : worlds_that_compare()) {
    if (reduced() && world.size != 3) continue;
    for (const Operation zero : collectives())
      for (const Operation others : collectives())
        if (zero != others) pairs.push_back({world, zero, others});
  }
  return pairs;
}

class MismatchOfOperations : public testing::TestWithParam<OperationPair> {};
INSTANTIATE_TEST_SUITE_P(Pairs, MismatchOfOperations, testing::ValuesIn(operation_pairs()),
                         CaseName());

TEST_P(MismatchOfOperations, IsAnErrorOnEveryRankThatNamesBoth) {
  const auto& [world, zero, others] = GetParam();
  expect_mismatch(world, {.operation = zero}, {.operation = others},
                  {std::string(name_of(zero)), std::string(name_of(others))});
}

std::vector<OperationPair> unordered_pairs() {
  std::vector<OperationPair> pairs = operation_pairs();
  std::erase_if(pairs, [](const OperationPair& pair) { return pair.zero > pair.others; });
  return pairs;
}

class MismatchOfOrder : public testing::TestWithParam<OperationPair> {};
INSTANTIATE_TEST_SUITE_P(Pairs, MismatchOfOrder, testing::ValuesIn(unordered_pairs()), CaseName());

// A then B against B then A: both calls fail; afterwards the order is common again.
TEST_P(MismatchOfOrder, IsAnErrorForBothCalls) {
  const Operation zero = GetParam().zero;
  const Operation others = GetParam().others;
  const std::vector<std::string> texts{std::string(name_of(zero)), std::string(name_of(others))};
  on_ranks(GetParam().world, [&](ProcessGroup& group) {
    const Operation first = group.rank() == 0 ? zero : others;
    const Operation second = group.rank() == 0 ? others : zero;
    expect_error(Errc::mismatch, texts, [&] { issue(group, {.operation = first}, false); });
    expect_error(Errc::mismatch, texts, [&] { issue(group, {.operation = second}, false); });
    expect_usable(group);
  });
}

// One operation, different arguments.

struct ArgumentCase {
  World world;
  Difference difference;
};
std::string to_string(const ArgumentCase& c) {
  return to_string(c.world) + "_" + std::string(name_of(c.difference.zero.operation)) + "_" +
         c.difference.name;
}
std::ostream& operator<<(std::ostream& out, const ArgumentCase& c) {
  return out << to_string(c);
}
std::vector<ArgumentCase> argument_cases() {
  std::vector<ArgumentCase> cases;
  for (const World& world : worlds_that_compare()) {
    if (reduced() && world.size != 3) continue;
    for (const Operation operation : collectives())
      for (const Difference& difference : differences_of(operation))
        cases.push_back({world, difference});
  }
  return cases;
}

class MismatchOfArguments : public testing::TestWithParam<ArgumentCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, MismatchOfArguments, testing::ValuesIn(argument_cases()),
                         CaseName());

TEST_P(MismatchOfArguments, IsAnErrorOnEveryRankThatShowsBothSides) {
  const auto& [world, difference] = GetParam();
  expect_mismatch(world, difference.zero, difference.others, difference.texts);
}

// Properties that may differ, and properties that only some calls compare.

class Mismatch : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Mismatch, testing::ValuesIn(worlds_that_compare()), CaseName());

TEST_P(Mismatch, ARankThatDiffersIsNamed) {
  for (int odd = 0; odd < world().size; ++odd) {
    on_ranks(world(), [&](ProcessGroup& group) {
      const Error error = expect_error(Errc::mismatch, {"rank " + std::to_string(odd)}, [&] {
        issue(group, {.operation = Operation::all_reduce, .rows = group.rank() == odd ? 9 : 8},
              false);
      });
      // With two ranks there is no majority.
      EXPECT_EQ(error.where().rank, group.size() == 2 ? -1 : odd);
      expect_usable(group);
    });
  }
}

TEST_P(Mismatch, RowsMayBeSpelledDifferentlyOnEachRank) {
  on_ranks(world(), [](ProcessGroup& group) {
    const auto parts = make_parts(DType::i32, Layout(index(group.size()), 2), {3});
    const Layout list(index(group.size()), 2);
    const Buffer in(group, parts[index(group.rank())]);
    const Buffer out(group, DType::i32, concat(parts).shape());
    group.all_gather(in, out,
                     group.rank() == 0   ? Rows(list)
                     : group.rank() == 1 ? Rows(2)
                                         : Rows());
    EXPECT_TRUE(same(out.read(), concat(parts)));
  });
}

TEST_P(Mismatch, ScalesAreNotCompared) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer data(group, array_of<float>({1}));
    group.all_reduce(data, ReduceOp::premul(group.rank()));
    const int n = group.size();
    EXPECT_TRUE(same(data.read(), array_of<float>({static_cast<float>(n * (n - 1) / 2)})));
  });
}

TEST_P(Mismatch, AllToAllRowsThatContradictAreNamedOnBothSides) {
  on_ranks(world(), [](ProcessGroup& group) {
    const auto n = index(group.size());
    // Rank 0 sends 5 rows to rank 1, which expects 6.
    Layout send(n, 1);
    Layout recv(n, 1);
    if (group.rank() == 0) send[1] = 5;
    if (group.rank() == 1) recv[0] = 6;
    const Buffer in(group, DType::i32, {total(send)});
    const Buffer out(group, DType::i32, {total(recv)});
    expect_error(Errc::mismatch, {"all_to_all", "5", "6"},
                 [&] { group.all_to_all(in, out, send, recv); });
    expect_usable(group);
  });
}

TEST_P(Mismatch, OfASendAndItsReceiveIsAnErrorOnBothSides) {
  struct Side {
    DType dtype = DType::i32;
    std::int64_t count = 4;
    std::string_view name{};
  };
  struct Case {
    Side sent;
    Side received;
    std::vector<std::string> texts;
  };
  const std::vector<Case> cases{
      {{DType::i32, 521}, {DType::i32, 734}, {"521", "734"}},
      {{DType::i32, 4}, {DType::f32, 4}, {"i32", "f32"}},
      {{DType::i32, 0}, {DType::i32, 734}, {"734"}},
      {{DType::i32, 4, "alpha"}, {DType::i32, 4, "beta"}, {"alpha", "beta"}},
  };
  for (const Case& c : cases) {
    on_ranks(world(), [&](ProcessGroup& group) {
      if (group.rank() < 2) {
        const bool sends = group.rank() == 0;
        const Side& mine = sends ? c.sent : c.received;
        const Buffer data(group, mine.dtype, {mine.count});
        expect_error(Errc::mismatch, c.texts, [&] {
          if (sends)
            group.send(data, 1, 3, {.name = mine.name});
          else
            group.recv(data, 0, 3, {.name = mine.name});
        });
        // The pair matches again.
        const Buffer next(group, array_of<std::int32_t>({sends ? 77 : 0}));
        if (sends)
          group.send(next, 1, 3);
        else
          group.recv(next, 0, 3);
        EXPECT_TRUE(same(next.read(), array_of<std::int32_t>({77})));
      }
      expect_usable(group);
    });
  }
}

TEST_P(Mismatch, OfCoalescedCallsIsAnErrorOnEveryRank) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer a(group, DType::i32, {4});
    const Buffer b(group, DType::i32, {4});
    const auto reduce = [&] { (void)group.all_reduce_async(a); };
    const auto broadcast = [&] { (void)group.broadcast_async(b, 0); };
    {
      Coalesce together(group);
      if (group.rank() == 0) {
        reduce();
        broadcast();
      } else {
        broadcast();
        reduce();
      }
      Work work = together.launch();
      expect_error(Errc::mismatch, {"all_reduce", "broadcast"}, [&] { work.wait(); });
    }
    {
      // Rank 0 makes one call more.
      Coalesce together(group);
      reduce();
      if (group.rank() == 0) broadcast();
      Work work = together.launch();
      expect_error(Errc::mismatch, {"all_reduce", "2"}, [&] { work.wait(); });
    }
    expect_usable(group);
  });
}

TEST_P(Mismatch, ANewGroupInTheSameProcessWorks) {
  const auto store = make_memory_store();
  on_fresh_ranks(world(),
                 [&](ProcessGroup& group) {
                   const Buffer data(group, DType::i32, {4});
                   expect_error(Errc::mismatch, {"all_reduce", "broadcast"}, [&] {
                     if (group.rank() == 0)
                       group.all_reduce(data);
                     else
                       group.broadcast(data, 0);
                   });
                   GroupOptions options = group_options(world(), group.rank(), store);
                   options.name = "second";
                   ProcessGroup second = ProcessGroup::create(options);
                   expect_usable(second);
                   second.barrier();
                 },
                 {.store = store, .name = "first"});
}

}  // namespace
}  // namespace tutti::test
