#include <complex>
#include <stdexcept>

#include "conformance/cells.hpp"

// Reductions with a function of the caller.

namespace tutti::test {
namespace {

/// x op y = 10 x + y: the digits of the result are the ranks, in the order of the fold. Not
/// associative, so that only the left fold gives this result.
void append_digits(const void* in, void* inout, std::int64_t count, DType, void*) {
  const auto* x = static_cast<const std::int64_t*>(in);
  auto* y = static_cast<std::int64_t*>(inout);
  for (std::int64_t i = 0; i < count; ++i) y[i] += 10 * x[i];
}

/// The sum modulo *context.
void add_modulo(const void* in, void* inout, std::int64_t count, DType, void* context) {
  const auto modulus = *static_cast<const std::int64_t*>(context);
  const auto* x = static_cast<const std::int64_t*>(in);
  auto* y = static_cast<std::int64_t*>(inout);
  for (std::int64_t i = 0; i < count; ++i) y[i] = (x[i] + y[i]) % modulus;
}

/// The product of complex numbers, which the library does not have.
void multiply(const void* in, void* inout, std::int64_t count, DType dtype, void*) {
  EXPECT_EQ(dtype, DType::complex128);
  const auto* x = static_cast<const std::complex<double>*>(in);
  auto* y = static_cast<std::complex<double>*>(inout);
  for (std::int64_t i = 0; i < count; ++i) y[i] *= x[i];
}

void refuse(const void*, void*, std::int64_t, DType, void*) {
  throw std::runtime_error("no such number");
}

constexpr std::int64_t modulus = 97;
std::int64_t shared_modulus = modulus;

/// A way to combine, and a simple reference.
struct Way {
  const char* name;
  ReduceOp op;
  std::int64_t (*combine)(std::int64_t x, std::int64_t y);
};
const std::vector<Way> ways{
    {"digits", ReduceOp::custom(append_digits, false),
     [](std::int64_t x, std::int64_t y) { return 10 * x + y; }},
    {"modulo", ReduceOp::custom(add_modulo, true, &shared_modulus),
     [](std::int64_t x, std::int64_t y) { return (x + y) % modulus; }},
};

Array input(std::int64_t count, int rank) {
  Array array(DType::i64, {count});
  for (std::int64_t i = 0; i < count; ++i)
    array.put<std::int64_t>(i, (rank + 1 + i) % 7 + (rank == 0 ? 1 : 0));
  return array;
}

/// Reference over the first `ranks` ranks.
Array fold(const Way& way, std::int64_t count, int ranks) {
  Array all = input(count, 0);
  for (int r = 1; r < ranks; ++r) {
    const Array next = input(count, r);
    for (std::int64_t i = 0; i < count; ++i)
      all.put(i, way.combine(all.get<std::int64_t>(i), next.get<std::int64_t>(i)));
  }
  return all;
}

/// Below and above every bound in the tables of algorithms.
std::vector<std::int64_t> many_counts() {
  return {1, 17, 3000, 100003};
}

/// A backend without host memory refuses, by name.
bool takes_functions(ProcessGroup& group) {
  const Buffer data(group, DType::i64, {4});
  if (group.supports(Operation::all_reduce, DType::i64, ways[0].op)) return true;
  expect_error(Errc::unsupported, {"all_reduce", "custom", "i64"},
               [&] { group.all_reduce(data, ways[0].op); });
  expect_usable(group);
  return false;
}

class CustomReduce : public testing::TestWithParam<World> {
 protected:
  /// body(group, way, count) on every rank.
  template <typename Body>
  void for_all(const Body& body) const {
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      if (!takes_functions(group)) return;
      for (const Way& way : ways)
        for (const std::int64_t count : many_counts()) {
          SCOPED_TRACE(std::string(way.name) + ", count " + std::to_string(count));
          body(group, way, count);
        }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, CustomReduce, testing::ValuesIn(worlds()), CaseName());

TEST_P(CustomReduce, AllReduceFoldsInRankOrder) {
  for_all([](ProcessGroup& group, const Way& way, std::int64_t count) {
    const Array want = fold(way, count, group.size());
    const Buffer in(group, input(count, group.rank()));
    const Buffer out(group, DType::i64, {count});
    group.all_reduce(in, out, way.op);
    EXPECT_TRUE(same(out.read(), want));
    EXPECT_TRUE(same(in.read(), input(count, group.rank()))) << "the input was changed";
    group.all_reduce(in, way.op, {.order_fixed = true});
    EXPECT_TRUE(same(in.read(), want)) << "in place";
    const Buffer later(group, input(count, group.rank()));
    group.all_reduce_async(later, way.op).wait();
    EXPECT_TRUE(same(later.read(), want)) << "asynchronously";
  });
}

TEST_P(CustomReduce, ReduceFoldsInRankOrderForEveryRoot) {
  for_all([](ProcessGroup& group, const Way& way, std::int64_t count) {
    const Array want = fold(way, count, group.size());
    for (int root = 0; root < group.size(); ++root) {
      const Buffer in(group, input(count, group.rank()));
      const Buffer out(group, DType::i64, {count});
      const Array before = out.read();
      group.reduce(in, out, root, way.op);
      EXPECT_TRUE(same(out.read(), group.rank() == root ? want : before)) << "root " << root;
    }
  });
}

TEST_P(CustomReduce, ReduceScatterFoldsUnevenBlocks) {
  for_all([](ProcessGroup& group, const Way& way, std::int64_t count) {
    for (Layout layout : layouts(group.size())) {
      for (auto& rows : layout) rows *= count / 10 + 1;
      const auto rows = layout[index(group.rank())];
      const auto first = offset(layout, group.rank());
      const Array want = fold(way, total(layout), group.size()).rows(first, rows);
      const Buffer in(group, input(total(layout), group.rank()));
      const Buffer out(group, DType::i64, {rows});
      group.reduce_scatter(in, out, layout, way.op);
      EXPECT_TRUE(same(out.read(), want)) << to_string(layout);
      group.reduce_scatter(in, in.rows(first, rows), layout, way.op);
      EXPECT_TRUE(same(in.read().rows(first, rows), want)) << "in place " << to_string(layout);
    }
  });
}

TEST_P(CustomReduce, ScansFoldTheRanksBefore) {
  for_all([](ProcessGroup& group, const Way& way, std::int64_t count) {
    const int rank = group.rank();
    const Buffer in(group, input(count, rank));
    const Buffer out(group, DType::i64, {count});
    const Array before = out.read();
    group.exclusive_scan(in, out, way.op);
    EXPECT_TRUE(same(out.read(), rank == 0 ? before : fold(way, count, rank)))
        << "rank 0 has no result";
    group.scan(in, out, way.op);
    EXPECT_TRUE(same(out.read(), fold(way, count, rank + 1)));
    group.exclusive_scan(in, in, way.op);
    EXPECT_TRUE(same(in.read(), rank == 0 ? input(count, 0) : fold(way, count, rank)))
        << "in place";
  });
}

TEST_P(CustomReduce, EveryDTypeIsTaken) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    if (!takes_functions(group)) return;
    using Number = std::complex<double>;
    const Buffer data(group, array_of<Number>({{0, 1}, {2, 0}}));
    group.all_reduce(data, ReduceOp::custom(multiply, true));
    Number power = 1;
    for (int r = 0; r < group.size(); ++r) power *= Number(0, 1);
    EXPECT_TRUE(same(data.read(), array_of<Number>({power, Number(1 << group.size(), 0)})));
  });
}

TEST_P(CustomReduce, ANullFunctionIsRefused) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const Buffer data(group, array_of<float>({1}));
    expect_error(Errc::invalid_argument, {"custom: the function is null"},
                 [&] { group.all_reduce(data, ReduceOp::custom(nullptr, true)); });
    expect_usable(group);
  });
}

class CustomReduceOfSeveral : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CustomReduceOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

TEST_P(CustomReduceOfSeveral, AnExceptionOnOneRankEndsTheCallOnAll) {
  for (const bool async : {false, true})
    on_fresh_ranks(GetParam(), [&](ProcessGroup& group) {
      if (!takes_functions(group)) return;
      const int last = group.size() - 1;
      const Buffer data(group, input(100003, group.rank()));
      const auto op = ReduceOp::custom(group.rank() == last ? refuse : append_digits, false);
      expect_error(Errc::backend, {"all_reduce", "rank " + std::to_string(last), "no such number"},
                   [&] {
                     if (async) return group.all_reduce_async(data, op).wait();
                     group.all_reduce(data, op);
                   });
      expect_error(Errc::aborted, {"no such number"}, [&] { group.barrier(); });
    });
}

class CustomReduceMismatch : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CustomReduceMismatch, testing::ValuesIn(worlds_that_compare()),
                         CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CustomReduceMismatch);

TEST_P(CustomReduceMismatch, OneRankWithoutAFunctionIsAnErrorOnAll) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    if (group.size() == 1 || !takes_functions(group)) return;
    const Buffer data(group, array_of<std::int64_t>({1, 2}));
    const auto ordered = ReduceOp::custom(append_digits, false);
    const auto any_order = ReduceOp::custom(append_digits, true);
    expect_error(Errc::mismatch, {"all_reduce custom i64", "all_reduce sum i64"},
                 [&] { group.all_reduce(data, group.rank() == 0 ? ordered : ReduceOp::sum); });
    expect_error(Errc::mismatch, {"custom i64", "custom commutative i64"},
                 [&] { group.all_reduce(data, group.rank() == 0 ? ordered : any_order); });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
