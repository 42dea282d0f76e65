// A coalesced call that one rank refuses, over every backend between hosts. The front refuses most
// calls before they are coalesced, so these tests use the backend without it.

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/backend/backend_table.hpp>

#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/scoped_variables.hpp"
#include "support/worlds.hpp"

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;

bool has(std::string_view name) {
  const auto found = std::ranges::find(backends(), name, &BackendEntry::name);
  return found != backends().end() && found->unavailable().empty();
}

/// Runs `body` on each rank of a group over hier:local+`outer`.
void on_backends(const std::string& outer, const char* hosts, int size,
                 const std::function<void(Backend& backend, int rank)>& body) {
  const ScopedVariables variables{{"TUTTI_HOSTS", hosts}};
  const auto store = make_memory_store();
  const auto choice = choose_backend(backend_here("hier:local+" + outer), {});
  on_threads(size, [&](int rank) {
    BackendInit init;
    init.store = store;
    init.rank = rank;
    init.size = size;
    init.name = "parts";
    init.args = choice.args;
    init.timeout = 30s;
    init.logger = [](LogLevel, std::string_view) {};
    const auto backend = choice.entry->make(init);
    body(*backend, rank);
  });
}

Call call_of(std::uint64_t seq, const std::vector<Op>& ops) {
  return {.seq = seq,
          .fingerprint = 77 + ops.size(),
          .deadline = Deadline::after(20s),
          .blocking = true};
}

/// Each rank but `refusing` makes the call. Returns true if it got the refusal before the deadline.
bool make_or_refuse(Backend& backend, int rank, int refusing, const std::vector<Op>& ops,
                    const Call& call) {
  if (rank == refusing) {
    backend.refuse(ops, call, Error(Errc::invalid_argument, "no such luck"));
    return true;
  }
  const auto begin = Clock::now();
  bool refused = false;
  try {
    backend.launch(ops, call).wait();
  } catch (const Error& error) {
    refused = true;
    EXPECT_EQ(error.code(), Errc::mismatch) << error.what();
    const auto text = "rank " + std::to_string(refusing) + " refused";
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
  EXPECT_LT(Clock::now() - begin, 5s * patience()) << "rank " << rank;
  return refused;
}

void expect_usable(Backend& backend, int size, std::uint64_t seq) {
  std::vector<std::int32_t> data(20'000, 1);
  const TensorView view(data);
  const std::vector<Op> ops{{.kind = Operation::all_reduce, .in = view, .out = view}};
  EXPECT_NO_THROW(backend.launch(ops, call_of(seq, ops)).wait());
  EXPECT_EQ(data, std::vector<std::int32_t>(data.size(), size));
}

struct Places {
  const char* hosts;
  int size;
};
constexpr std::array places_of_ranks{Places{"a,b,b,a", 4}, Places{"a,b,c,a,b", 5}};

class CoalescedRefusal : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Outer, CoalescedRefusal, testing::Values("local", "gloo", "tcp", "ucx"),
                         [](const auto& outer) { return outer.param; });

// Over ucx the root of a small broadcast does not wait for its receivers, and an empty reduction
// sends nothing over any backend. So ranks are several operations ahead of the refusal.
TEST_P(CoalescedRefusal, ReachesRanksThatAreSeveralOperationsAhead) {
  if (!has(GetParam())) GTEST_SKIP() << "not in this build";
  for (const auto& [hosts, size] : places_of_ranks)
    on_backends(GetParam(), hosts, size, [&, size = size](Backend& backend, int rank) {
      std::vector<std::int32_t> data(16, 1);
      const TensorView whole(data);
      const TensorView none(data.data(), DType::i32, {0});
      std::uint64_t seq = 0;
      for (int refusing = 0; refusing < size; ++refusing) {
        SCOPED_TRACE("refused by rank " + std::to_string(refusing));
        std::vector<Op> ops;
        for (int i = 0; i < 5; ++i)
          ops.push_back({.kind = Operation::all_reduce, .in = none, .out = none});
        for (int i = 0; i < 5; ++i)
          ops.push_back(
              {.kind = Operation::broadcast, .in = whole, .out = whole, .root = (i / 4 + 1) % 3});
        ops.push_back({.kind = Operation::all_reduce, .in = whole, .out = whole});
        EXPECT_TRUE(make_or_refuse(backend, rank, refusing, ops, call_of(seq, ops)));
        ++seq;
        expect_usable(backend, size, seq++);
      }
    });
}

// Nothing is sent, so the arrays need not exist.
TEST(HierCalls, WithMoreStepsThanNumbersAreRefused) {
  on_backends("local", "a,b,b,a", 4, [](Backend& backend, int) {
    std::int32_t nothing = 0;
    const TensorView array(&nothing, DType::i32, {std::int64_t{1} << 38});
    const std::vector<std::int64_t> rows(4, std::int64_t{1} << 36);
    const std::int64_t block = rows[0];
    const TensorView part(&nothing, DType::i32, {block});
    std::uint64_t seq = 0;
    for (const Op& op :
         {Op{.kind = Operation::all_reduce, .in = array, .out = array},
          Op{.kind = Operation::reduce, .in = array, .out = array, .root = 1},
          Op{.kind = Operation::broadcast, .in = array, .out = array, .root = 1},
          Op{.kind = Operation::all_gather, .in = part, .out = array, .rows = rows},
          Op{.kind = Operation::reduce_scatter, .in = array, .out = part, .rows = rows}}) {
      const std::vector<Op> ops(8, op);
      expect_error(Errc::count_overflow, {"steps", "1048576"},
                   [&] { backend.launch(ops, call_of(seq, ops)).wait(); });
      ++seq;
      expect_usable(backend, 4, seq++);
    }
  });
}

// Both calls of a lane that are in flight end, and the memory that they use is free.
TEST_P(CoalescedRefusal, EndsLargeArraysInFlight) {
  if (!has(GetParam())) GTEST_SKIP() << "not in this build";
  for (const auto& [hosts, size] : places_of_ranks)
    on_backends(GetParam(), hosts, size, [&, size = size](Backend& backend, int rank) {
      std::vector<std::int32_t> data(2'000'000, 1);
      const TensorView whole(data);
      std::uint64_t seq = 0;
      for (const int root : {0, 1}) {
        const int refusing = size - 1;
        const std::vector<Op> ops{
            {.kind = Operation::broadcast, .in = whole, .out = whole, .root = root},
            {.kind = Operation::reduce, .in = whole, .out = whole, .root = root},
            {.kind = Operation::all_reduce, .in = whole, .out = whole}};
        EXPECT_TRUE(make_or_refuse(backend, rank, refusing, ops, call_of(seq, ops)));
        ++seq;
        expect_usable(backend, size, seq++);
      }
    });
}

}  // namespace
}  // namespace tutti::test
