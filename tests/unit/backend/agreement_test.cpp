#include "backend/agreement.hpp"

#include <array>
#include <barrier>
#include <chrono>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/store_over.hpp"

// Ranks are threads over a memory store.

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;
using test::expect_error;
using test::StoreOver;

constexpr int size = 4;

using Body = std::function<void(Agreement& agreement, int rank)>;

/// All ranks begin together: a rank waits only briefly for the status of another.
void on_ranks(const std::shared_ptr<Store>& store, const Body& body) {
  std::barrier started(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      Agreement agreement(store, rank, size);
      started.arrive_and_wait();
      body(agreement, rank);
    });
  for (auto& thread : threads) thread.join();
}

Error timeout() {
  return {Errc::timeout, "the deadline passed", {.group = "world", .rank = 0}};
}

Status in_call(std::uint64_t seq, std::uint64_t fingerprint = 1, std::string_view text = "f32") {
  Status status{.call = fmt::format("all_reduce #{} on group 'world'", seq)};
  status.record.seq = seq;
  status.record.fingerprint = fingerprint;
  std::ranges::copy(text, status.record.text.begin());
  status.group = "world";
  return status;
}

Failure late(const Status& status) {
  // On a busy machine a rank's thread may get a core only after some 100 ms.
  return {.cause = timeout(), .status = status, .ask = {0, 1, 2, 3}, .patience = 400ms};
}

/// A store whose calls all fail, as if the server were gone.
class DeadStore final : public Store {
 public:
  void set(std::string_view, std::span<const std::byte>) override { fail_now(); }
  std::optional<Bytes> try_get(std::string_view) override { fail_now(); }
  Bytes get(std::string_view, Deadline) override { fail_now(); }
  std::int64_t add(std::string_view, std::int64_t) override { fail_now(); }
  Bytes compare_set(std::string_view, std::span<const std::byte>,
                    std::span<const std::byte>) override {
    fail_now();
  }
  bool erase(std::string_view) override { fail_now(); }

 private:
  [[noreturn]] static void fail_now() { throw Error(Errc::peer_lost, "the store has ended"); }
};

TEST(Agreement, TheFirstCauseCountsOnAllRanks) {
  const auto store = make_memory_store();
  std::array<std::string, size> causes;
  on_ranks(store, [&](Agreement& agreement, int rank) {
    const Error mine(Errc::aborted, fmt::format("rank {} aborted", rank),
                     {.group = "world", .operation = "barrier", .seq = 7, .rank = rank});
    causes[static_cast<std::size_t>(rank)] = agreement.report({.cause = mine}).what();
  });
  for (const auto& cause : causes) EXPECT_EQ(cause, causes[0]);
  EXPECT_NE(causes[0].find("barrier #7 on group 'world'"), std::string::npos) << causes[0];
  Agreement later(store, 2, size);
  EXPECT_EQ(later.cause({})->what(), causes[0]);
}

/// A memory store that loses one write, the first of this key.
class LossyStore final : public StoreOver {
 public:
  explicit LossyStore(std::string lost) : StoreOver(make_memory_store()), lost_(std::move(lost)) {}

  void set(std::string_view key, std::span<const std::byte> value) override {
    if (key == lost_) {
      lost_.clear();
      throw Error(Errc::timeout, "the store does not answer");
    }
    StoreOver::set(key, value);
  }

 private:
  std::string lost_;
};

constexpr std::string_view different_calls =
    "ranks may have made different calls, which TUTTI_CHECK=1 compares before data moves";

TEST(Agreement, AHealthyGroupHasNoCause) {
  Agreement agreement(make_memory_store(), 0, size);
  EXPECT_FALSE(agreement.cause(in_call(1)));
  EXPECT_FALSE(agreement.collecting());
  EXPECT_TRUE(agreement.refusals().read_new().empty());
  EXPECT_TRUE(agreement.departed().empty());
}

TEST(Agreement, ADeadlineNamesTheRankThatIsElsewhere) {
  on_ranks(make_memory_store(), [](Agreement& agreement, int rank) {
    const Error cause = agreement.report(late(in_call(rank == 2 ? 3 : 4)));
    EXPECT_EQ(cause.code(), Errc::timeout);
    const std::string text = cause.what();
    // Rank 2 names the others if it is the first.
    const bool named = text.find("entered: 0 1 3; missing: 2 (all_reduce #3") != std::string::npos;
    const bool reversed = text.find("entered: 2; missing: 0 (all_reduce #4") != std::string::npos;
    EXPECT_TRUE(named || reversed) << text;
    EXPECT_NE(text.find(different_calls), std::string::npos) << text;
    EXPECT_EQ(cause.where().rank, named ? 2 : 0);
  });
}

TEST(Agreement, ADeadlineNamesTheRankThatIsInNoCall) {
  on_ranks(make_memory_store(), [](Agreement& agreement, int rank) {
    if (rank == 1) return;
    const Error cause = agreement.report(late(in_call(4)));
    EXPECT_NE(std::string(cause.what()).find("entered: 0 2 3; missing: 1"), std::string::npos)
        << cause.what();
    EXPECT_EQ(std::string(cause.what()).find(different_calls), std::string::npos) << cause.what();
    EXPECT_EQ(cause.where().missing, std::vector<int>{1});
  });
}

// A rank may end its part of a call that another rank then waits in, for the rank that is missing.
TEST(Agreement, ADeadlineDoesNotNameRanksThatWaitInOtherCalls) {
  for (const int missing : {1, 3})
    on_ranks(make_memory_store(), [&](Agreement& agreement, int rank) {
      if (rank == missing) return;
      const Error cause = agreement.report(late(in_call(rank == 2 ? 4 : 5)));
      EXPECT_EQ(cause.where().rank, missing) << cause.what();
      // Seen from call 4 all others have entered, seen from call 5 rank 2 has not.
      if (cause.where().missing.size() == 1)
        EXPECT_EQ(cause.where().missing, std::vector<int>{missing}) << cause.what();
      else
        EXPECT_EQ(cause.where().missing, (missing == 1 ? std::vector{1, 2} : std::vector{2, 3}))
            << cause.what();
    });
}

TEST(Agreement, ADeadlineNamesTheRankThatLeft) {
  const auto store = make_memory_store();
  Agreement(store, 3, size).leave(5);
  on_ranks(store, [](Agreement& agreement, int rank) {
    if (rank == 3) return;
    EXPECT_TRUE(agreement.left(3));
    EXPECT_FALSE(agreement.left(0));
    EXPECT_EQ(agreement.departed().at(3), 5U);
    const Error cause = agreement.report(late(in_call(4)));
    EXPECT_NE(std::string(cause.what()).find("missing: 3 (has left the group)"), std::string::npos)
        << cause.what();
    EXPECT_EQ(cause.where().rank, 3);
  });
}

TEST(Agreement, ADeadlineThatAllRanksReachedTogetherSaysSo) {
  on_ranks(make_memory_store(), [](Agreement& agreement, int) {
    const Error cause = agreement.report(late(in_call(4)));
    EXPECT_NE(std::string(cause.what()).find("all ranks have entered"), std::string::npos)
        << cause.what();
  });
}

TEST(Agreement, ADeadlineOfDifferentCallsIsAMismatch) {
  on_ranks(make_memory_store(), [](Agreement& agreement, int rank) {
    const auto status = rank == 1 ? in_call(4, 77, "max f32 [8]") : in_call(4, 1, "sum f32 [8]");
    const Error cause = agreement.report(late(status));
    EXPECT_EQ(cause.code(), Errc::mismatch);
    EXPECT_EQ(cause.where().rank, 1);
    for (const std::string_view text : {"ranks 0 2 3: sum f32 [8] #4", "rank 1: max f32 [8] #4"})
      EXPECT_NE(std::string(cause.what()).find(text), std::string::npos) << cause.what();
  });
}

TEST(Agreement, ARankWithoutADeadlinePublishesItsStatusWhenOneIsCollected) {
  const auto store = make_memory_store();
  std::barrier<> together(2);
  std::thread waiting([&] {
    Agreement agreement(store, 1, size);
    together.arrive_and_wait();
    std::optional<Error> cause;
    while (!cause) {
      cause = agreement.cause(in_call(9));
      if (!cause) cause = agreement.cause({});  // Of a thread without a call: changes nothing.
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_NE(std::string(cause->what()).find("entered: 0 1;"), std::string::npos) << cause->what();
  });
  Agreement agreement(store, 0, size);
  together.arrive_and_wait();
  (void)agreement.report(late(in_call(9)));
  waiting.join();
}

TEST(Agreement, ARankThatDiesWhileItCollectsCostsASecond) {
  const auto store = make_memory_store();
  EXPECT_TRUE(Agreement(store, 0, size).announce(late(in_call(4))));  // And no later ones.
  const auto begin = std::chrono::steady_clock::now();
  std::array<std::string, size> causes;
  on_ranks(store, [&](Agreement& agreement, int rank) {
    if (rank == 0) return;
    EXPECT_TRUE(agreement.collecting());
    const Error mine(Errc::peer_lost, fmt::format("rank {} lost rank 0", rank), {.rank = 0});
    causes[static_cast<std::size_t>(rank)] = agreement.report({.cause = mine}).what();
  });
  EXPECT_EQ(causes[1], causes[2]);
  EXPECT_EQ(causes[1], causes[3]);
  EXPECT_NE(causes[1].find("lost rank 0"), std::string::npos) << causes[1];
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 1s);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

TEST(Agreement, ARefusalReachesEveryPeerOnce) {
  on_ranks(make_memory_store(), [](Agreement& agreement, int rank) {
    if (rank == 1)
      return agreement.refusals().add({.call = 99, .rank = 1, .text = "all_reduce #17: null"});
    std::vector<Refusal> found;
    while (found.empty()) found = agreement.refusals().read_new();
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].call, 99U);
    EXPECT_EQ(found[0].rank, 1);
    EXPECT_EQ(found[0].text, "all_reduce #17: null");
    EXPECT_EQ(agreement.refusals().of(99)->rank, 1);
    EXPECT_EQ(agreement.refusals().of(98), nullptr);
    EXPECT_TRUE(agreement.refusals().read_new().empty());
    agreement.refusals().abandon(99);
    const std::vector<int> all{0, 1, 2, 3};
    EXPECT_EQ(agreement.refusals().await_abandoned(99, all, Deadline::after(20s)),
              (std::vector<int>{0, 2, 3}));
  });
}

TEST(Agreement, ARefusalThatDoesNotReachTheStoreHidesNoLaterOne) {
  const auto store = std::make_shared<LossyStore>("agreement/refusal/1");
  Agreement refusing(store, 1, size);
  Agreement peer(store, 0, size);
  for (const std::uint64_t call : {97U, 98U, 99U})
    refusing.refusals().add({.call = call, .rank = 1, .text = "all_reduce #17: null"});
  ASSERT_EQ(peer.refusals().read_new().size(), 2U);
  EXPECT_EQ(peer.refusals().of(97), nullptr);
  EXPECT_NE(peer.refusals().of(98), nullptr);
  EXPECT_NE(peer.refusals().of(99), nullptr);
  refusing.refusals().add({.call = 100, .rank = 1, .text = "all_reduce #18: null"});
  EXPECT_EQ(peer.refusals().read_new().size(), 1U);
}

TEST(Agreement, ARefusalThatReachesTheStoreLateIsFound) {
  const auto store = std::make_shared<LossyStore>("agreement/refusal/1");
  Agreement refusing(store, 1, size);
  Agreement peer(store, 0, size);
  refusing.refusals().add({.call = 97, .rank = 1, .text = "all_reduce #17: null"});
  EXPECT_TRUE(peer.refusals().read_new().empty());
  EXPECT_FALSE(peer.refusals().has_read_all());
  const auto source = make_memory_store();
  Agreement(source, 1, size)
      .refusals()
      .add({.call = 97, .rank = 1, .text = "all_reduce #17: null"});
  store->set("agreement/refusal/1", *source->try_get("agreement/refusal/1"));
  ASSERT_EQ(peer.refusals().read_new().size(), 1U);
  EXPECT_EQ(peer.refusals().of(97)->text, "all_reduce #17: null");
  EXPECT_TRUE(peer.refusals().has_read_all());
  EXPECT_TRUE(peer.refusals().read_new().empty());
}

TEST(Agreement, ARankThatIsNotInARefusedCallIsWaitedForUntilTheDeadline) {
  Agreement agreement(make_memory_store(), 0, size);
  agreement.refusals().abandon(99);
  const std::vector<int> all{0, 1};
  expect_error(Errc::timeout, {"1 of 2 ranks"},
               [&] { (void)agreement.refusals().await_abandoned(99, all, Deadline::after(10ms)); });
}

/// A store that may fall silent, and counts what is written meanwhile.
class SilentStore final : public StoreOver {
 public:
  SilentStore() : StoreOver(make_memory_store()) {}

  Bytes get(std::string_view key, Deadline limit) override {
    if (!silent) return StoreOver::get(key, limit);
    std::this_thread::sleep_for(500ms);  // As long as a TCP store waits for an answer.
    throw Error(Errc::timeout, "no answer");
  }
  bool silent = false;
  int writes_in_silence = 0;

 private:
  void seen(std::string_view, bool written) override { writes_in_silence += written && silent; }
};

TEST(Agreement, ARefusalIsNotWrittenToAStoreThatDoesNotAnswer) {
  const auto store = std::make_shared<SilentStore>();
  Agreement refusing(store, 1, size);
  Agreement peer(store, 0, size);
  const Refusal refusal{.call = 97, .rank = 1, .text = "all_reduce #17: null"};
  for (const bool silent : {true, false}) {
    store->silent = silent;
    refusing.refusals().add(refusal);
    EXPECT_EQ(store->writes_in_silence, 0) << "a write would wait for the timeout of the store";
    EXPECT_EQ(refusing.is_silent(), silent);
  }
  EXPECT_EQ(peer.refusals().read_new().size(), 1U);
}

/// Counts the calls.
class CountedStore final : public StoreOver {
 public:
  CountedStore() : StoreOver(make_memory_store()) {}
  int calls = 0;

 private:
  void seen(std::string_view, bool) override { ++calls; }
};

TEST(Agreement, ManyRanksLeaveARefusedCallWithFewRoundTrips) {
  constexpr int many = 1000;
  const auto store = std::make_shared<CountedStore>();
  std::vector<int> all(many);
  std::iota(all.begin(), all.end(), 0);
  auto left = all;
  for (const int refusing : {999, 500, 32, 31, 0}) {
    left.erase(left.begin() + refusing);
    Agreement(store, refusing, many).refusals().add({.call = 99, .rank = refusing, .text = "null"});
  }
  for (const int rank : left) Agreement(store, rank, many).refusals().abandon(99);
  store->calls = 0;
  EXPECT_EQ(Agreement(store, 1, many).refusals().await_abandoned(99, all, Deadline::after(20s)),
            left);
  EXPECT_LE(store->calls, 40);
}

TEST(Agreement, ARankThatRefusesACallAndThenLeavesItCountsOnce) {
  const auto store = make_memory_store();
  const std::vector<int> all{0, 1};
  Agreement refusing(store, 1, size);
  Agreement peer(store, 0, size);
  refusing.refusals().add({.call = 99, .rank = 1, .text = "all_reduce #17: null"});
  refusing.refusals().abandon(99);
  expect_error(Errc::timeout, {"1 of 2 ranks"},
               [&] { (void)peer.refusals().await_abandoned(99, all, Deadline::after(10ms)); });
  peer.refusals().abandon(99);
  EXPECT_EQ(peer.refusals().await_abandoned(99, all, Deadline::after(20s)), std::vector<int>{0});
  EXPECT_EQ(refusing.refusals().await_abandoned(99, all, Deadline::after(20s)), std::vector<int>{});
}

TEST(Agreement, QuestionsOfSeveralRanksAreReadOnce) {
  const auto store = make_memory_store();
  Agreement asked(store, 0, size);
  EXPECT_TRUE(asked.questions().empty());
  for (int rank = 1; rank < size; ++rank)
    for (const std::uint64_t pair : {7U, 8U})  // The second question replaces the first.
      Agreement(store, rank, size).ask(0, {.rank = rank, .pair = pair, .text = "recv"});
  const auto questions = asked.questions();
  ASSERT_EQ(questions.size(), 3U);
  for (std::size_t i = 0; i < questions.size(); ++i) {
    EXPECT_EQ(questions[i].rank, static_cast<int>(i) + 1);
    EXPECT_EQ(questions[i].pair, 8U);
  }
  EXPECT_TRUE(asked.questions().empty());
}

TEST(Agreement, WithoutTheStoreEveryRankSpeaksForItself) {
  Agreement agreement(std::make_shared<DeadStore>(), 2, size);
  const Error mine(Errc::aborted, "rank 2 aborted", {.rank = 2});
  EXPECT_STREQ(agreement.report({.cause = mine}).what(), mine.what());
  EXPECT_STREQ(agreement.report(late(in_call(4))).what(), timeout().what());
  EXPECT_FALSE(agreement.cause({}));
  EXPECT_TRUE(agreement.refusals().read_new().empty());
  EXPECT_TRUE(agreement.departed().empty());
  agreement.publish_status({});
  agreement.refusals().add({});
  agreement.leave(0);
  expect_error(Errc::peer_lost, {"the store"}, [&] { (void)agreement.left(0); });
}

}  // namespace
}  // namespace tutti::internal
