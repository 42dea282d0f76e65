// Groups over shared memory whose ranks are processes: data, hosts, and peers that write nonsense.

#include <sched.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tutti/coalesce.hpp>

#include "memory/collectives.hpp"
#include "memory/layout.hpp"
#include "memory/member.hpp"
#include "shm/messages.hpp"
#include "shm/rendezvous.hpp"
#include "support.hpp"
#include "support/errors.hpp"

namespace tutti::test {
namespace {

namespace memory = backend::memory;
namespace shm = backend::shm;
// Around every change of how the data moves, and with many rounds.
TEST(ShmGroup, ReducesArraysOfAllSizes) {
  for (const int size : {2, 3, 4})
    on_processes({.size = size}, [](RankProcess& rank) {
      auto group = ProcessGroup::create(options_of(rank, "sizes"));
      for (const std::size_t elements : {12U, 13U, 2U << 10, 4U << 10, 8U << 10, 16U << 10,
                                         64U << 10, 128U << 10, 256U << 10, 1280U << 10})
        for (const std::size_t more : {0U, 1U, 17U}) expect_sums(group, elements + more);
      return std::string();
    });
}

// The rounds of a refused call have the numbers of the next call's rounds.
TEST(ShmGroup, ARefusedCallLeavesNothingToTheNext) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    auto group = ProcessGroup::create(options_of(rank, "refused"));
    for (int i = 0; i < 20; ++i) {
      std::vector<std::int32_t> data(100'000, 7);
      EXPECT_THROW(group.all_reduce(rank.last() ? TensorView(nullptr, DType::i32, {100'000})
                                                : TensorView(data)),
                   Error);
      std::vector<std::int32_t> one(1, 1);
      std::vector<std::int32_t> next(100'000, 1);
      Coalesce together(group);
      (void)group.all_reduce_async(one);
      (void)group.all_reduce_async(next);
      if (rank.last()) std::this_thread::sleep_for(1ms);
      together.launch().wait();
      EXPECT_EQ(next, std::vector<std::int32_t>(100'000, 2));
    }
    return std::string();
  });
}

/// Does not answer the first reads of a peer's refusals.
class SlowStore final : public StoreOver {
 public:
  using StoreOver::StoreOver;

 private:
  void seen(std::string_view key, bool written) override {
    if (!written && key.ends_with("/refusals") && failures_-- > 0)
      throw Error(Errc::timeout, "the store does not answer");
  }
  int failures_ = 2;
};

TEST(ShmGroup, ARefusalIsReadAgainFromAStoreThatDidNotAnswer) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    auto options = options_of(rank, "slow");
    options.timeout = 5s;
    options.store = std::make_shared<SlowStore>(options.store);
    auto group = ProcessGroup::create(options);
    std::vector<std::int32_t> data(10, 7);
    const auto code = rank.last() ? Errc::invalid_argument : Errc::mismatch;
    expect_error(code, {}, [&] {
      group.all_reduce(rank.last() ? TensorView(nullptr, DType::i32, {10}) : TensorView(data));
    });
    expect_sums(group, 10);
    return std::string();
  });
}

// As many all_to_all operations as need several rounds of row counts.
TEST(ShmGroup, RowCountsAreComparedBeforeDataMoves) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    auto group = ProcessGroup::create(options_of(rank, "counts"));
    constexpr std::size_t exchanges = (std::size_t{256} << 10) / (4 * sizeof(std::int64_t)) + 10;
    for (const bool differs : {true, false, true}) {
      std::vector<std::int32_t> sum(100'000, 1);
      std::vector<std::vector<std::int32_t>> received(exchanges, std::vector<std::int32_t>(2, -1));
      const std::vector<std::int32_t> sent{rank.rank() + 1, rank.rank() + 11};
      const std::vector<std::int64_t> equal{1, 1};
      Coalesce together(group);
      (void)group.all_reduce_async(sum);
      for (std::size_t i = 0; i < exchanges; ++i) {
        const bool less = differs && rank.last() && i + 1 == exchanges;  // None for rank 0.
        (void)group.all_to_all_async(std::span(sent).subspan(less ? 1 : 0), received[i],
                                     less ? Rows{0, 1} : Rows(equal), equal);
      }
      auto work = together.launch();
      if (differs) {
        expect_error(Errc::mismatch, {"rank 1 sends 0 rows to rank 0"}, [&] { work.wait(); });
        EXPECT_EQ(sum, std::vector<std::int32_t>(100'000, 1));
        EXPECT_EQ(received[0], std::vector<std::int32_t>(2, -1));
      } else {
        work.wait();
        EXPECT_EQ(sum, std::vector<std::int32_t>(100'000, 2));
        const int shift = 10 * rank.rank();
        for (const auto& rows : received)
          EXPECT_EQ(rows, (std::vector<std::int32_t>{1 + shift, 2 + shift}));
      }
    }
    expect_sums(group, 100'000);
    return std::string();
  });
}

TEST(ShmGroup, ManyRanksShareFewCores) {
  on_processes({.size = 8, .limit = 120s}, [](RankProcess& rank) {
    auto group = ProcessGroup::create(options_of(rank, "many"));
    for (int i = 0; i < 20; ++i) {
      expect_sums(group, 1);
      expect_sums(group, 30'000);
    }
    return std::string();
  });
}

// --- Hosts ---

TEST(ShmGroup, RanksInDifferentNamespacesAreRefusedOnAllOfThem) {
  const auto output = on_processes({.size = 2}, [](RankProcess& rank) -> std::string {
    const bool own = !rank.last() || ::unshare(CLONE_NEWNET) == 0;
    rank.store().set(fmt::format("own/{}", rank.rank()), own ? "1" : "");
    rank.barrier();
    if (rank.store().get_text("own/1", Deadline::after(5s)).empty()) return "not permitted";
    expect_error(Errc::unsupported,
                 {"group 'apart'", "one host", "ranks 0 and 1", "network namespace", "tcp"},
                 [&] { (void)ProcessGroup::create(options_of(rank, "apart")); });
    return {};
  });
  if (output[0] == "not permitted") GTEST_SKIP() << "network namespaces are not permitted here";
}

// --- Peers that write nonsense ---

/// Two ranks as threads, whose shared memory a test may overwrite.
void on_members(const std::function<void(const std::shared_ptr<memory::Member>& member)>& body) {
  const auto store = make_memory_store();
  on_threads(2, [&](int rank) {
    body(shm::join(BackendInit{.store = store,
                               .rank = rank,
                               .size = 2,
                               .name = "members",
                               .timeout = 10s,
                               .logger = [](LogLevel, std::string_view) {}}));
  });
}

TEST(ShmMember, RoundsNeedNoMoreThanTheLayoutHas) {
  for (std::size_t size = 1; size <= 256; ++size) {
    const memory::Layout layout(static_cast<int>(size));
    const auto last = size - 1;
    ASSERT_LE(layout.rank(last) + sizeof(memory::SharedRank),
              layout.slot(0, 0) - layout.slot_prefix);
    ASSERT_EQ(layout.slot(0, 1) - layout.slot(0, 0), layout.slot_bytes() + layout.slot_prefix);
    ASSERT_EQ(layout.slot(last, 3) + layout.slot_bytes(), layout.ring(0, 0));
    ASSERT_LE(layout.ring(last, last) + sizeof(memory::SharedRing) + layout.ring_bytes(),
              layout.bytes());
    // A block of each rank, and the row counts of an all_to_all.
    ASSERT_GE(layout.slot_bytes() / size / memory::cache_line, 1U);
    ASSERT_LE(2 * size * sizeof(std::int64_t), layout.slot_bytes());
  }
}

TEST(ShmMember, TwoRanksExchangeTheMemoryOfTheirSlots) {
  on_members([](const std::shared_ptr<memory::Member>& member) {
    std::set<std::byte*> places;
    for (std::uint64_t round = 0; round < 8; ++round)
      for (const int rank : {0, 1}) {
        places.insert(member->slot(rank, round));
        EXPECT_EQ(member->slot(rank, round + 4), member->slot(1 - rank, round));
      }
    EXPECT_EQ(places.size(), 8U);
  });
}

TEST(ShmMember, TheFirstCauseAppliesToAllRanks) {
  RankBarrier barrier(2);
  on_members([&](const std::shared_ptr<memory::Member>& member) {
    if (member->rank() == 0) (void)member->fail(Error(Errc::aborted, "the first"));
    barrier.wait();
    EXPECT_TRUE(member->is_broken());
    EXPECT_EQ(member->fail(Error(Errc::aborted, "the second")).message(), "the first");
    EXPECT_EQ(member->failure()->message(), "the first");
    barrier.wait();
  });
}

/// Rank 0 writes `number` into a ring that it shares with rank 1, which sends or receives.
void expect_error_of_ring(Operation operation, std::uint64_t number, const std::string& what) {
  RankBarrier barrier(2);
  on_members([&](const std::shared_ptr<memory::Member>& member) {
    if (member->rank() == 0) {
      if (operation == Operation::recv)
        member->ring(0, 1).head = number;
      else
        member->ring(1, 0).tail = number;
      barrier.wait();
      barrier.wait();
      EXPECT_EQ(member->failure()->code(), Errc::backend);
      return;
    }
    barrier.wait();
    const auto messages = std::make_shared<shm::Messages>(member);
    member->on_failure([&](const Error& cause) { messages->fail(cause); });
    std::vector<std::uint8_t> data(8);
    const Op op = operation == Operation::recv ? Op{.kind = Operation::recv, .out = data, .peer = 0}
                                               : Op{.kind = Operation::send, .in = data, .peer = 0};
    const auto message = std::make_shared<shm::Messages::Message>(
        std::make_shared<internal::CallQueue>(), messages, op, Deadline::after(10s));
    messages->post(message, {});
    expect_error({Errc::backend, Errc::aborted}, {"rank 0 wrote " + what, "not possible"}, [&] {
      message->wait_until(Deadline::none());
      std::rethrow_exception(message->error());
    });
    barrier.wait();
    messages->stop();
  });
}

TEST(ShmMember, AFrameThatIsNotPossibleBreaksTheGroup) {
  expect_error_of_ring(Operation::recv, 1, "a frame");
  expect_error_of_ring(Operation::recv, ~std::uint64_t{0}, "a frame");
  // All zeros: a request without data, whose length is not that of the receive.
  expect_error_of_ring(Operation::recv, sizeof(shm::Frame), "a message's length");
  expect_error_of_ring(Operation::send, 5, "the end of a ring");
}

TEST(ShmMember, ALengthThatIsNotPossibleBreaksTheGroup) {
  on_members([](const std::shared_ptr<memory::Member>& member) {
    std::vector<std::uint8_t> in(100);
    std::vector<std::uint8_t> out(200);
    const Op op{.kind = Operation::all_gather_bounded, .in = in, .out = out, .rows = 100};
    const std::vector ops{op};
    const Call call{.deadline = Deadline::after(10s)};
    if (member->rank() == 0) {
      member->begin(ops, call);
      member->prefix(0, 0).bytes = 101;
      std::memset(member->slot(0, 0), 0xFF, 200);
      member->filled(0);
      member->enter({}, true);
      return;
    }
    expect_error(Errc::backend, {"rank 0 wrote a block's length", "not possible"},
                 [&] { memory::run_collectives(*member, ops, call); });
    EXPECT_EQ(out[100], 0);
  });
}

}  // namespace
}  // namespace tutti::test
