// Groups over shared memory whose ranks are processes: deaths, resources, hosts, and peers that
// write nonsense.

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tutti/coalesce.hpp>

#include "../gloo/rank_processes.hpp"
#include "shm/collectives.hpp"
#include "shm/layout.hpp"
#include "shm/member.hpp"
#include "shm/messages.hpp"
#include "support/errors.hpp"
#include "support/ranks.hpp"

namespace tutti::test {
namespace {

namespace shm = backend::shm;
using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

/// A sanitizer slows everything down.
double times() {
  return reduced() ? 5 : 1;
}

GroupOptions options_of(const RankProcess& rank, const std::string& name) {
  auto options = rank.options(name);
  options.backend = "shm";
  return options;
}

void expect_sums(ProcessGroup& group, std::size_t count) {
  std::vector<std::int32_t> data(count);
  for (std::size_t i = 0; i < count; ++i)
    data[i] = static_cast<std::int32_t>(i % 1009) * (group.rank() + 1);
  group.all_reduce(data);
  const int n = group.size();
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_EQ(data[i], static_cast<std::int32_t>(i % 1009) * (n * (n + 1) / 2)) << "element " << i;
}

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

// --- Ranks that die ---

enum class What : std::uint8_t { all_reduce, broadcast, barrier, message };

/// Calls until the rank is killed or loses a peer.
void call_for_ever(ProcessGroup& group, What what, std::vector<std::uint8_t>& data) {
  for (;;) {
    switch (what) {
      case What::all_reduce:
        group.all_reduce(data, ReduceOp::max);
        break;
      case What::broadcast:
        group.broadcast(data, group.size() - 1);
        break;
      case What::barrier:
        group.barrier();
        break;
      case What::message:
        if (group.rank() == 0) {
          group.recv(data, group.size() - 1);
        } else if (group.rank() == group.size() - 1) {
          group.send(data, 0);
        } else {
          group.barrier();
        }
        break;
    }
  }
}

void expect_survivors(What what, std::size_t bytes, int runs) {
  std::vector<double> after;
  for (int run = 0; run < runs; ++run) {
    const auto output = on_processes({.size = 3, .dies = 2}, [&](RankProcess& rank) {
      std::vector<std::uint8_t> data(bytes);
      const auto before = holdings();
      std::string took;
      {
        auto group = ProcessGroup::create(options_of(rank, "mortal"));
        group.barrier();
        rank.barrier();
        if (rank.last()) {
          std::thread killer([&] {
            std::this_thread::sleep_for(std::chrono::microseconds(run * 7919 % 20'000));
            rank.store().set("killed", std::to_string(Clock::now().time_since_epoch().count()));
            ::raise(SIGKILL);
          });
          call_for_ever(group, what, data);
        }
        const auto error = expect_error({Errc::peer_lost, Errc::aborted}, {"rank 2"},
                                        [&] { call_for_ever(group, what, data); });
        const auto ended = Clock::now();
        EXPECT_EQ(error.where().rank, 2) << error.what();
        const auto killed = Clock::time_point(
            Clock::duration(std::stoll(rank.store().get_text("killed", Deadline::after(5s)))));
        took = std::to_string(Milliseconds(ended - killed).count());
        EXPECT_LT(Milliseconds(ended - killed).count(), 200 * times());
        rank.barrier(2);
        auto options = options_of(rank, "survivors");
        options.size = 2;
        auto survivors = ProcessGroup::create(options);
        expect_sums(survivors, 100'000);
      }
      EXPECT_EQ(holdings().descriptors, before.descriptors);
      EXPECT_EQ(holdings().threads, before.threads);
      return took;
    });
    for (const auto& text : output)
      if (!text.empty() && text.find_first_not_of("0123456789.-") == std::string::npos)
        after.push_back(std::stod(text));
  }
  std::ranges::sort(after);
  ASSERT_FALSE(after.empty());
  std::cout << fmt::format(
      "killed peer, {} B: calls ended {:.1f} ms after the kill (median), "
      "{:.1f} ms at the most\n",
      bytes, after[after.size() / 2], after.back());
}

TEST(ShmGroup, AKilledPeerEndsTheCallsOfAllSurvivors) {
  expect_survivors(What::all_reduce, 8, 3);
  expect_survivors(What::all_reduce, std::size_t{8} << 20, 3);
  expect_survivors(What::broadcast, std::size_t{1} << 20, 2);
  expect_survivors(What::barrier, 8, 2);
  expect_survivors(What::message, std::size_t{1} << 20, 3);
}

TEST(SlowShmGroup, AKilledPeerEndsTheCallsOfAllSurvivors) {
  for (const auto what : {What::all_reduce, What::broadcast, What::barrier, What::message})
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{1} << 20})
      expect_survivors(what, bytes, 25);
}

TEST(ShmGroup, AStoppedPeerCostsNoMoreThanTheDeadline) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    auto group = ProcessGroup::create(options_of(rank, "stopped"));
    std::vector<std::uint8_t> data(std::size_t{4} << 20);
    group.barrier();
    if (rank.last()) {
      ::raise(SIGSTOP);
      expect_error({Errc::timeout, Errc::aborted}, {"deadline"}, [&] { group.all_reduce(data); });
      return std::string();
    }
    wait_until_stopped(rank.process(1));
    const auto start = Clock::now();
    expect_error(Errc::timeout, {"deadline", "missing: 1"},
                 [&] { group.all_reduce(data, ReduceOp::max, {.timeout = 100ms}); });
    EXPECT_LT(Milliseconds(Clock::now() - start).count(), 100 + 150 * times());
    ::kill(rank.process(1), SIGCONT);
    return std::string();
  });
}

// --- Resources ---

TEST(ShmGroup, GroupsReleaseEverything) {
  on_processes({.size = 3, .limit = 120s}, [](RankProcess& rank) {
    const auto cycle = [&](int i) {
      auto group = ProcessGroup::create(options_of(rank, fmt::format("cycle{}", i)));
      expect_sums(group, 50'000);
      group.barrier_async().wait();
      std::vector<float> data(10'000);
      std::vector<float> other(10'000);
      group.sendrecv(data, (rank.rank() + 1) % 3, other, (rank.rank() + 2) % 3);
      auto part = group.split(rank.rank() % 2);
      expect_sums(*part, 10);
    };
    for (int i = 0; i < 5; ++i) cycle(i);
    const auto before = holdings();
    for (int i = 5; i < 25; ++i) cycle(i);
    const auto after = holdings();
    EXPECT_EQ(after.descriptors, before.descriptors);
    EXPECT_EQ(after.threads, before.threads);
    if (!reduced()) {
      EXPECT_LT(after.resident_kib, before.resident_kib + 1024);
    }
    return std::string();
  });
}

TEST(ShmGroup, LeavesNoFile) {
  const auto files = [] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      names.insert(entry.path().string());
    return names;
  };
  const auto before = files();
  on_processes({.size = 2, .dies = 1}, [](RankProcess& rank) {
    auto group = ProcessGroup::create(options_of(rank, "files"));
    group.barrier();
    if (rank.last()) ::raise(SIGKILL);
    return std::string();
  });
  EXPECT_EQ(files(), before);
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
                 {"group 'apart'", "one host", "ranks 0 and 1", "network namespace", "gloo"},
                 [&] { (void)ProcessGroup::create(options_of(rank, "apart")); });
    return {};
  });
  if (output[0] == "not permitted") GTEST_SKIP() << "network namespaces are not permitted here";
}

// --- Peers that write nonsense ---

/// Two ranks as threads, whose shared memory a test may overwrite.
void on_members(const std::function<void(const std::shared_ptr<shm::Member>& member)>& body) {
  const auto store = make_memory_store();
  on_threads(2, [&](int rank) {
    body(std::make_shared<shm::Member>(BackendInit{.store = store,
                                                   .rank = rank,
                                                   .size = 2,
                                                   .name = "members",
                                                   .timeout = 10s,
                                                   .logger = [](LogLevel, std::string_view) {}}));
  });
}

TEST(ShmMember, RoundsNeedNoMoreThanTheLayoutHas) {
  const shm::Layout layout(3);
  EXPECT_EQ(layout.slot(0, 1) - layout.slot(0, 0), layout.slot_bytes() + shm::Layout::slot_prefix);
  EXPECT_LT(layout.slot(2, 3) + layout.slot_bytes(), layout.slice(0, 0) + 1);
  EXPECT_LE(layout.ring(2, 2) + sizeof(shm::SharedRing) + layout.ring_bytes(), layout.bytes());
}

TEST(ShmMember, TheFirstCauseAppliesToAllRanks) {
  RankBarrier barrier(2);
  on_members([&](const std::shared_ptr<shm::Member>& member) {
    if (member->rank() == 0) (void)member->fail({.cause = Error(Errc::aborted, "the first")});
    barrier.wait();
    EXPECT_TRUE(member->is_broken());
    EXPECT_EQ(member->fail({.cause = Error(Errc::aborted, "the second")}).message(), "the first");
    EXPECT_EQ(member->failure()->message(), "the first");
    barrier.wait();
  });
}

/// Rank 0 writes `number` as the head of its ring to rank 1, which receives.
void expect_error_of_ring(std::uint64_t number, const std::string& what) {
  RankBarrier barrier(2);
  on_members([&](const std::shared_ptr<shm::Member>& member) {
    if (member->rank() == 0) {
      barrier.wait();
      member->ring(0, 1).head = number;
      shm::Member::ring_bell(member->message_bell(1));
      barrier.wait();
      EXPECT_EQ(member->failure()->code(), Errc::backend);
      return;
    }
    const auto messages = std::make_shared<shm::Messages>(member);
    member->on_failure([&](const Error& cause) { messages->fail(cause); });
    std::vector<std::uint8_t> data(8);
    const Op op{.kind = Operation::recv, .out = data, .peer = 0};
    const auto message = std::make_shared<shm::Messages::Message>(
        std::make_shared<internal::CallQueue>(), messages, op, Deadline::after(10s));
    messages->post(message, {});
    barrier.wait();
    expect_error({Errc::backend, Errc::aborted}, {"rank 0 wrote " + what, "not possible"}, [&] {
      message->wait_until(Deadline::none());
      std::rethrow_exception(message->error());
    });
    barrier.wait();
    messages->stop();
  });
}

TEST(ShmMember, AFrameThatIsNotPossibleBreaksTheGroup) {
  expect_error_of_ring(1, "a frame");
  expect_error_of_ring(~std::uint64_t{0}, "a frame");
  // All zeros: a request without data, whose length is not that of the receive.
  expect_error_of_ring(sizeof(shm::Frame), "a message's length");
}

TEST(ShmMember, ALengthThatIsNotPossibleBreaksTheGroup) {
  on_members([](const std::shared_ptr<shm::Member>& member) {
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
                 [&] { shm::run_collectives(*member, ops, call); });
    EXPECT_EQ(out[100], 0);
  });
}

}  // namespace
}  // namespace tutti::test
