#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/backend/forwarding_backend.hpp>
#include <tutti/process_group.hpp>
#include <tutti/store/store.hpp>

#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/scoped_variables.hpp"
#include "support/store_over.hpp"
#include "support/worlds.hpp"

// Properties of checked mode alone: the keys that it leaves in the store, and the errors that it
// finds over a transport that compares nothing.

namespace tutti::test {
namespace {

/// A store that lists its keys, and fails on request.
class WatchedStore final : public ListedStore {
 public:
  std::optional<Bytes> try_get(std::string_view key) override {
    auto value = ListedStore::try_get(key);
    if (looked) looked(key, value.has_value());
    return value;
  }
  Bytes get(std::string_view key, Deadline deadline) override {
    try {
      auto value = ListedStore::get(key, deadline);
      if (looked) looked(key, true);
      return value;
    } catch (const Error&) {
      if (looked) looked(key, false);
      throw;
    }
  }

  bool has_key_with(std::string_view part) const { return keys_with(part) != 0; }
  std::int64_t keys_with(std::string_view part) const {
    return std::ranges::count_if(
        keys(), [&](const std::string& key) { return key.find(part) != std::string::npos; });
  }
  std::atomic<bool> fails{false};
  std::function<void(std::string_view key, bool found)>
      looked{};  ///< Called after every get() and try_get().

 private:
  void seen(std::string_view, bool) override {
    if (fails) fail(Errc::backend, "the store is gone");
  }
};

/// A transport whose messages never arrive: only checked mode can report the reason.
class Mute final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept override {
    return operation != Operation::recv_any && inner().supports(operation, dtype, reduce);
  }
  Work launch(std::span<const Op> ops, const Call& call) override {
    if (!is_point_to_point(ops[0].kind)) return inner().launch(ops, call);
    auto state = std::make_shared<Never>(call.limit());
    const std::lock_guard lock(mutex_);
    states_.push_back(state);
    return Work(state);
  }
  void refuse(std::span<const Op>, const Call&, const Error&) noexcept override {}
  void abort(std::string_view why) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& state : states_) state->end();
    }
    inner().abort(why);
  }

 private:
  class Never final : public WorkState {
   public:
    explicit Never(Deadline limit) : limit_(limit) {}
    bool done() const noexcept override { return ended_ || limit_.expired(); }
    bool wait_until(Deadline deadline) override {
      while (!done()) {
        if (deadline.is_set() && deadline.expired()) return false;
        std::this_thread::sleep_for(1ms);
      }
      return true;
    }
    std::exception_ptr error() const noexcept override {
      return std::make_exception_ptr(ended_ ? Error(Errc::aborted, "the transport was aborted")
                                            : Error(Errc::timeout, "the transport heard nothing"));
    }
    void block_stream(Stream) override { wait_until(Deadline::none()); }
    std::shared_ptr<WorkState> then(std::function<void()>) override { return nullptr; }
    std::shared_ptr<WorkState> on_done(std::function<void(const Error*)>) override {
      return nullptr;
    }
    void end() { ended_ = true; }

   private:
    Deadline limit_;
    std::atomic<bool> ended_{false};
  };
  std::mutex mutex_;
  std::vector<std::shared_ptr<Never>> states_;
};

/// A transport that finds that rank 2 has died.
class FindsADeath final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::optional<Error> failure() const override {
    return Error(Errc::peer_lost, "the process of rank 2 has ended", {.rank = 2});
  }
};

World checked_world(int size) {
  return {"local", size, true};
}

Fresh over_mute() {
  return {.adjust = [](GroupOptions& options) {
    options.decorate = [](std::unique_ptr<Backend> inner) {
      return std::make_unique<Mute>(std::move(inner));
    };
  }};
}

double seconds_since(Deadline::Clock::time_point when) {
  return std::chrono::duration<double>(Deadline::Clock::now() - when).count();
}

// Activation.

bool is_checked(const GroupOptions& options) {
  const auto store = std::make_shared<WatchedStore>();
  GroupOptions watched = options;
  watched.backend = "local";
  watched.store = store;
  watched.logger = [](LogLevel, std::string_view) {};
  ProcessGroup::create(watched).barrier();
  return store->has_key_with("check/");
}

TEST(CheckedMode, IsOnWhenAskedForAndOffByDefault) {
  const ScopedVariables unset{{"TUTTI_CHECK", nullptr}};
  EXPECT_FALSE(is_checked({}));
  EXPECT_TRUE(is_checked({.checked = true}));
  EXPECT_FALSE(is_checked({.checked = false}));
}

TEST(CheckedMode, TheVariableDecidesUnlessTheCallerHas) {
  const ScopedVariables set{{"TUTTI_CHECK", "1"}};
  EXPECT_TRUE(is_checked({}));
  EXPECT_FALSE(is_checked({.checked = false}));
}

TEST(CheckedMode, ZeroAndEmptyAreOff) {
  for (const char* value : {"0", ""}) {
    const ScopedVariables set{{"TUTTI_CHECK", value}};
    EXPECT_FALSE(is_checked({}));
  }
}

TEST(CheckedMode, AnotherValueIsRefused) {
  for (const char* value : {"2", "yes", "on", " 1"}) {
    const ScopedVariables set{{"TUTTI_CHECK", value}};
    expect_error(Errc::invalid_argument, {"TUTTI_CHECK", std::string("'") + value + "'", "0 or 1"},
                 [] { (void)is_checked({}); });
    EXPECT_TRUE(is_checked({.checked = true})) << "the variable is not asked";
  }
}

// Keys in the store.

/// A transport that carries messages as local does, but leaves the comparison to the records.
class MatchesByNumber final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept override {
    return operation != Operation::recv_any && inner().supports(operation, dtype, reduce);
  }
};

std::unique_ptr<Backend> match_by_number(std::unique_ptr<Backend> inner) {
  return std::make_unique<MatchesByNumber>(std::move(inner));
}

/// Number of additional keys in the store after `calls` calls, relative to the first ten.
std::int64_t growth(
    int size, int calls, const std::function<void(ProcessGroup&, int)>& call,
    const std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)>& decorate = {}) {
  const auto store = std::make_shared<WatchedStore>();
  std::atomic<std::int64_t> before = 0;
  std::atomic<std::int64_t> after = 0;
  RankBarrier barrier(size);
  on_fresh_ranks(checked_world(size),
                 [&](ProcessGroup& group) {
                   for (int i = 0; i < calls; ++i) {
                     if (i == 10) {
                       barrier.wait();
                       if (group.rank() == 0) before = store->keys_with("/check/");
                       barrier.wait();
                     }
                     call(group, i);
                   }
                   barrier.wait();
                   if (group.rank() == 0) after = store->keys_with("/check/");
                   barrier.wait();
                 },
                 {.store = store, .adjust = [&](GroupOptions& options) {
                    if (decorate) options.decorate = decorate;
                  }});
  return after - before;
}

TEST(CheckedMode, RecordsOfCollectivesAreErased) {
  const auto grown = growth(3, 1000, [](ProcessGroup& group, int) { group.barrier(); });
  EXPECT_LE(grown, 0) << "keys per rank and call stay in the store";
}

TEST(CheckedMode, RecordsOfAsyncCollectivesAreErased) {
  const auto grown =
      growth(2, 1000, [](ProcessGroup& group, int) { group.barrier_async().wait(); });
  EXPECT_LE(grown, 0);
}

TEST(CheckedMode, RecordsOfPointToPointAreErased) {
  std::vector<std::vector<float>> data(2, std::vector<float>(4));
  const auto grown = growth(
      2, 1000,
      [&](ProcessGroup& group, int) {
        auto& mine = data[static_cast<std::size_t>(group.rank())];
        if (group.rank() == 0)
          group.send(mine, 1);
        else
          group.recv(mine, 0);
      },
      match_by_number);
  EXPECT_LE(grown, 2) << "keys per message stay in the store";
}

TEST(CheckedMode, RecordsOfDetachedReceivesAreErased) {
  const auto grown = growth(
      2, 200,
      [&](ProcessGroup& group, int) {
        auto data = std::make_shared<std::vector<float>>(4);
        const std::weak_ptr<void> watch = data;
        Work work = group.rank() == 0 ? group.send_async(*data, 1) : group.recv_async(*data, 0);
        std::move(work).detach(std::move(data));
        for (const Deadline limit = 20s; !watch.expired() && !limit.expired();)
          std::this_thread::sleep_for(100us);
        EXPECT_TRUE(watch.expired());
        group.barrier();
      },
      match_by_number);
  EXPECT_LE(grown, 2);
}

TEST(CheckedMode, RecordsOfMismatchedCallsAreErasedToo) {
  std::vector<std::vector<float>> data(2, std::vector<float>(4));
  const auto grown = growth(2, 100, [&](ProcessGroup& group, int) {
    auto& mine = data[static_cast<std::size_t>(group.rank())];
    expect_error(Errc::mismatch, {"sum", "max"}, [&] {
      group.all_reduce(mine, group.rank() == 0 ? ReduceOp::sum : ReduceOp::max);
    });
  });
  EXPECT_LE(grown, 0);
}

// A refusal stays until its readers have passed it, at the next valid call.
TEST(CheckedMode, RecordsOfRefusedCallsAreErasedLater) {
  std::vector<std::vector<float>> data(2, std::vector<float>(4));
  const auto grown = growth(2, 100, [&](ProcessGroup& group, int i) {
    auto& mine = data[static_cast<std::size_t>(group.rank())];
    if (i % 2 == 0 && i != 10) {
      const int bad_root = group.rank() == 0 ? 7 : 0;
      EXPECT_THROW(group.broadcast(mine, bad_root), Error);
    } else {
      group.barrier();
    }
  });
  EXPECT_LE(grown, 0);
}

// Point-to-point over a transport without errors of its own.

TEST(CheckedMode, APointToPointMismatchIsNamedOnBothSides) {
  on_fresh_ranks(
      checked_world(2),
      [](ProcessGroup& group) {
        std::vector<float> data(group.rank() == 0 ? 521 : 734);
        const auto before = Deadline::Clock::now();
        expect_error(Errc::mismatch,
                     {"rank 0: send f32 [521] to 1", "rank 1: recv f32 [734] from 0"}, [&] {
                       if (group.rank() == 0)
                         group.send(data, 1, 3);
                       else
                         group.recv(data, 0, 3);
                     });
        EXPECT_LT(seconds_since(before), 2 * patience());
      },
      over_mute());
}

TEST(CheckedMode, ARefusedSendIsToldToItsReceiver) {
  on_fresh_ranks(
      checked_world(2),
      [](ProcessGroup& group) {
        std::vector<float> data(4);
        if (group.rank() == 0) {
          TensorView nothing = data;
          nothing.data = nullptr;
          expect_error(Errc::invalid_argument, {"null"}, [&] { group.send(nothing, 1, 5); });
        } else {
          const auto before = Deadline::Clock::now();
          const Error error = expect_error(Errc::mismatch, {"rank 0 refused", "null"},
                                           [&] { group.recv(data, 0, 5); });
          EXPECT_EQ(error.where().rank, 0);
          EXPECT_LT(seconds_since(before), 2 * patience());
        }
      },
      over_mute());
}

// Ends of the wait for a record.

// Rank 0 fails between two reads of rank 1: of the published records, and of the transport.
TEST(CheckedMode, TheFirstCauseCountsWhateverIsSeenFirst) {
  const auto store = std::make_shared<WatchedStore>();
  std::atomic<std::thread::id> waiting;
  std::atomic<bool> gave_up = false;
  store->looked = [&](std::string_view key, bool found) {
    if (!key.ends_with("check/failed") || found || std::this_thread::get_id() != waiting) return;
    if (!store->has_key_with("check/0/1")) return;  // It has not published its call yet.
    while (!gave_up) std::this_thread::sleep_for(1ms);
  };
  RankBarrier done(3);
  on_fresh_ranks(checked_world(3),
                 [&](ProcessGroup& group) {
                   if (group.rank() == 1) waiting = std::this_thread::get_id();
                   if (group.rank() != 2) {
                     const auto limit = group.rank() == 0 ? 100ms : 10s;
                     expect_error(Errc::timeout, {"rank 2"},
                                  [&] { group.barrier({.deadline = limit}); });
                     gave_up = true;
                   }
                   done.wait();
                 },
                 {.store = store});
}

// A store that fails.

TEST(CheckedMode, AStoreThatFailsIsAnErrorOfTheCall) {
  const auto store = std::make_shared<WatchedStore>();
  RankBarrier barrier(2);
  on_fresh_ranks(checked_world(2),
                 [&](ProcessGroup& group) {
                   std::vector<float> data(4);
                   group.all_reduce(data);
                   barrier.wait();
                   store->fails = true;
                   expect_error({Errc::backend, Errc::aborted}, {"the store is gone"},
                                [&] { group.all_reduce(data); });
                   expect_error(Errc::aborted, {"broken"}, [&] { group.barrier(); });
                   barrier.wait();
                 },
                 {.store = store});
}

TEST(CheckedMode, AStoreThatFailsWhileAMessageIsOnItsWayIsAnErrorOfItsWorkOrOfTheNextCall) {
  for (const bool abandons : {false, true}) {
    const auto store = std::make_shared<WatchedStore>();
    Fresh fresh = over_mute();
    fresh.store = store;
    RankBarrier barrier(2);
    on_fresh_ranks(
        checked_world(2),
        [&](ProcessGroup& group) {
          std::vector<float> data(4);
          {
            Work work = group.rank() == 0 ? group.send_async(data, 1, 0, {.deadline = 2s})
                                          : group.recv_async(data, 0, 0, {.deadline = 2s});
            EXPECT_FALSE(work.wait_for(50ms));
            barrier.wait();
            store->fails = true;
            if (!abandons) expect_error({Errc::backend, Errc::aborted}, {}, [&] { work.wait(); });
          }
          if (abandons) {
            EXPECT_THROW(group.barrier(), Error);
          }
          // A failure without a waiting thread does not end the program.
          barrier.wait();
        },
        fresh);
  }
}

// Rank 0 finds the death and leaves between two looks of rank 1 into the store.
TEST(CheckedMode, ARankThatLeavesIsNotBlamedForTheDeadOne) {
  const auto store = std::make_shared<WatchedStore>();
  std::latch looked(1);
  std::latch left(1);
  std::latch ended(1);
  std::atomic<bool> armed{false};
  store->looked = [&](std::string_view key, bool found) {
    if (!key.ends_with("check/failed") || found || !store->has_key_with("check/0/1")) return;
    if (!armed.exchange(false)) return;
    looked.count_down();
    left.wait();
  };
  const auto run = [&](ProcessGroup& group) {
    if (group.rank() == 0) {
      looked.wait();
      {
        ProcessGroup own = std::move(group);
        expect_error(Errc::peer_lost, {"rank 2"}, [&] { own.barrier(); });
      }
      left.count_down();
    } else if (group.rank() == 1) {
      armed = true;
      const Error error = expect_error(Errc::peer_lost, {"rank 2"}, [&] { group.barrier(); });
      EXPECT_EQ(error.where().rank, 2) << error.what();
      ended.count_down();
    } else {
      ended.wait();
    }
  };
  on_fresh_ranks(checked_world(3), run, {.store = store, .adjust = [](GroupOptions& options) {
                                           if (options.rank != 0) return;
                                           options.decorate = [](std::unique_ptr<Backend> inner) {
                                             return std::make_unique<FindsADeath>(std::move(inner));
                                           };
                                         }});
}

}  // namespace
}  // namespace tutti::test
