#include <tutti/work.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/backend/work_state.hpp>

#include "support/errors.hpp"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using test::expect_error;

static_assert(!std::is_copy_constructible_v<Work> && !std::is_copy_assignable_v<Work>);
static_assert(std::is_nothrow_move_constructible_v<Work>);
static_assert(std::is_nothrow_move_assignable_v<Work>);

/// A call whose end the test controls.
class HandState final : public WorkState {
 public:
  bool done() const noexcept override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  bool wait_until(Deadline deadline) override {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    const auto ended = [this] { return done_; };
    bool in_time = true;
    if (deadline.time() == Deadline::Clock::time_point::max())
      changed_.wait(lock, ended);
    else
      in_time = changed_.wait_until(lock, deadline.time(), ended);
    --waiting_;
    return in_time;
  }
  std::exception_ptr error() const noexcept override {
    const std::lock_guard lock(mutex_);
    return done_ ? error_ : nullptr;
  }
  void block_stream(Stream stream) override { ordered.push_back(stream); }
  std::shared_ptr<WorkState> then(std::function<void()> next) override {
    return attach([next = std::move(next)](const std::exception_ptr& error) {
      if (error == nullptr) next();
    });
  }
  std::shared_ptr<WorkState> on_done(std::function<void(const Error*)> f) override {
    if (refuses) fail(Errc::unsupported, "no callbacks here");
    return attach([f = std::move(f)](const std::exception_ptr& thrown) {
      if (thrown == nullptr) return f(nullptr);
      try {
        std::rethrow_exception(thrown);
      } catch (const Error& error) {
        f(&error);
      }
    });
  }

  void finish(const std::exception_ptr& error = nullptr) {
    std::vector<std::pair<Next, std::shared_ptr<HandState>>> next;
    {
      const std::lock_guard lock(mutex_);
      if (done_) return;
      done_ = true;
      error_ = error;
      next.swap(next_);
      changed_.notify_all();
    }
    for (auto& [run, after] : next) {
      std::exception_ptr thrown = error;
      try {
        run(error);
      } catch (...) {
        thrown = std::current_exception();
      }
      after->finish(thrown);
    }
  }
  void fail_with(Errc code, const std::string& message) {
    finish(std::make_exception_ptr(Error(code, message)));
  }
  void await_waiter() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0; });
  }

  std::vector<Stream> ordered;
  bool refuses = false;

 private:
  using Next = std::function<void(const std::exception_ptr&)>;
  std::shared_ptr<HandState> attach(Next next) {
    auto after = std::make_shared<HandState>();
    const std::lock_guard lock(mutex_);
    next_.emplace_back(std::move(next), after);
    return after;
  }
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool done_ = false;
  std::exception_ptr error_;
  std::vector<std::pair<Next, std::shared_ptr<HandState>>> next_;
};

/// A group that records notifications.
class HandOwner final : public WorkOwner {
 public:
  void collected(std::uint64_t token, bool failed) noexcept override {
    events.push_back("collected " + std::to_string(token) + (failed ? " failed" : " well"));
  }
  void uncollected(const Error& error) noexcept override {
    events.push_back("uncollected " + error.message());
  }
  void callback_threw(const Error& error) noexcept override {
    events.push_back("threw " + error.message());
  }
  void abort(std::string_view why) noexcept override {
    events.push_back("abort");
    reason = why;
    if (on_abort) on_abort();
  }

  std::vector<std::string> events;
  std::string reason;
  std::function<void()> on_abort;
};

using Events = std::vector<std::string>;

class WorkTest : public testing::Test {
 protected:
  Work make(std::uint64_t token = 7) { return Work(state, owner, token); }

  const std::shared_ptr<HandState> state = std::make_shared<HandState>();
  const std::shared_ptr<HandOwner> owner = std::make_shared<HandOwner>();
};

/// Finishes `state` from another thread when a thread waits for it.
std::thread finish_when_waited_for(const std::shared_ptr<HandState>& state,
                                   std::atomic<bool>& finished) {
  return std::thread([&finished, state] {
    state->await_waiter();
    std::this_thread::sleep_for(5ms);
    finished = true;
    state->finish();
  });
}

TEST_F(WorkTest, DefaultMadeIsFinished) {
  Work work;
  EXPECT_TRUE(work.done());
  EXPECT_TRUE(work.wait_for(0s));
  EXPECT_FALSE(work.error().has_value());
  work.wait();
  work.block_stream({});
  EXPECT_EQ(work.state(), nullptr);
}

TEST_F(WorkTest, WaitBlocksUntilTheEndAndTellsTheOwnerOnce) {
  Work work = make();
  EXPECT_FALSE(work.done());
  std::atomic<bool> finished = false;
  std::thread other = finish_when_waited_for(state, finished);
  work.wait();
  EXPECT_TRUE(finished);
  other.join();
  EXPECT_TRUE(work.done());
  work.wait();
  EXPECT_EQ(owner->events, Events{"collected 7 well"});
}

TEST_F(WorkTest, WaitThrowsOtherExceptionsAsTheyAre) {
  Work work = make();
  state->finish(std::make_exception_ptr(std::runtime_error("from a hook")));
  EXPECT_THROW(work.wait(), std::runtime_error);
}

TEST_F(WorkTest, ErrorIsEmptyWhileItRunsAndWhenItWentWell) {
  Work work = make();
  EXPECT_FALSE(work.error().has_value());
  state->finish();
  EXPECT_FALSE(work.error().has_value());
}

TEST_F(WorkTest, ErrorMakesAnErrorOfAnyException) {
  Work work = make();
  state->finish(std::make_exception_ptr(std::runtime_error("from a hook")));
  const auto error = work.error();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), Errc::backend);
  EXPECT_EQ(error->message(), "from a hook");
  const auto strange_state = std::make_shared<HandState>();
  Work strange(strange_state);
  strange_state->finish(std::make_exception_ptr(42));
  EXPECT_EQ(strange.error()->code(), Errc::backend);
}

TEST_F(WorkTest, DestructorDoesNotAbortWhatHasEndedAlready) {
  try {
    const Work work = make();
    state->finish();
    throw std::runtime_error("something else");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(owner->events, Events{"collected 7 well"});
}

// A Work that is made and used up inside a handler is not part of the unwinding.
TEST_F(WorkTest, AWorkMadeWhileUnwindingIsWaitedForLikeOthers) {
  struct Cleanup {
    std::function<void()> run;
    ~Cleanup() { run(); }
  };
  try {
    const Cleanup cleanup{[this] {
      const Work work = make();
      state->finish();
    }};
    throw std::runtime_error("something else");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(owner->events, Events{"collected 7 well"});
}

TEST_F(WorkTest, MoveLeavesAFinishedWorkBehind) {
  Work first = make();
  Work second = std::move(first);
  EXPECT_TRUE(first.done());  // NOLINT(bugprone-use-after-move): checks the moved-from state.
  first.wait();
  EXPECT_FALSE(second.done());
  EXPECT_TRUE(owner->events.empty());
  state->finish();
  second.wait();
  EXPECT_EQ(owner->events, Events{"collected 7 well"});
}

TEST_F(WorkTest, MoveAssignmentSettlesTheOldCallFirst) {
  const auto next = std::make_shared<HandState>();
  Work work = make();
  state->fail_with(Errc::timeout, "the old one");
  work = Work(next, owner, 8);
  EXPECT_EQ(owner->events, (Events{"collected 7 failed", "uncollected the old one"}));
  EXPECT_FALSE(work.done());
  next->finish();
  work.wait();
  EXPECT_EQ(owner->events.back(), "collected 8 well");
}

TEST_F(WorkTest, MoveAssignmentToItselfChangesNothing) {
  Work work = make();
  Work& same = work;
  work = std::move(same);
  EXPECT_FALSE(work.done());
  state->finish();
  work.wait();
  EXPECT_EQ(owner->events, Events{"collected 7 well"});
}

TEST_F(WorkTest, ReleaseTakesTheStateWithoutWaitingOrReporting) {
  std::shared_ptr<WorkState> taken;
  {
    Work work = make();
    taken = std::move(work).release();
  }
  EXPECT_EQ(taken, state);
  EXPECT_TRUE(owner->events.empty());
}

TEST_F(WorkTest, NeedsNoOwner) {
  const auto failing = std::make_shared<HandState>();
  {
    const Work work(failing);
    failing->fail_with(Errc::timeout, "late");
  }
  Work work(state);
  state->fail_with(Errc::timeout, "late");
  EXPECT_EQ(work.error()->code(), Errc::timeout);
}

// then

TEST_F(WorkTest, ThenOfAFinishedWorkRunsNow) {
  bool ran = false;
  const Work after = Work().then([&] { ran = true; });
  EXPECT_TRUE(ran);
  EXPECT_TRUE(after.done());
}

TEST_F(WorkTest, ThenOfAFinishedWorkCarriesWhatItsFunctionThrew) {
  bool ran = false;
  Work after =
      Work().then([] { throw std::runtime_error("from a hook"); }).then([&] { ran = true; });
  EXPECT_TRUE(after.done());
  after.block_stream({});
  EXPECT_EQ(after.error()->message(), "from a hook");
  EXPECT_THROW(after.wait(), std::runtime_error);
  EXPECT_FALSE(ran);
}

// on_done

/// Records the arguments of its callbacks.
struct Heard {
  std::function<void(const Error*)> callback() {
    return [this](const Error* error) {
      texts.push_back(error == nullptr ? "success" : error->message());
    };
  }
  Events texts;
};

TEST_F(WorkTest, WaitStillThrowsAfterOnDone) {
  Heard heard;
  Work work = make();
  work.on_done(heard.callback());
  state->fail_with(Errc::peer_lost, "gone");
  expect_error(Errc::peer_lost, {"gone"}, [&] { work.wait(); });
}

TEST_F(WorkTest, OnDoneOfAFinishedWorkRunsNow) {
  Heard heard;
  Work work;
  work.on_done(heard.callback());
  Work failed = Work().then([] { throw std::runtime_error("from a hook"); });
  failed.on_done(heard.callback());
  EXPECT_EQ(heard.texts, (Events{"success", "from a hook"}));
}

TEST_F(WorkTest, AnErrorOfThenAfterOnDoneIsNotCollectedByIt) {
  Heard heard;
  {
    Work work = make();
    work.on_done(heard.callback());
    const Work after = std::move(work).then([] { fail(Errc::backend, "the hook failed"); });
    state->finish();
  }
  EXPECT_EQ(heard.texts, Events{"success"});
  EXPECT_EQ(owner->events.back(), "uncollected the hook failed");
}

TEST_F(WorkTest, AnErrorThatOnDoneCollectedPassesThroughThen) {
  Heard heard;
  {
    Work work = make();
    work.on_done(heard.callback());
    const Work after = std::move(work).then([] {});
    state->fail_with(Errc::peer_lost, "gone");
  }
  EXPECT_EQ(owner->events, Events{"collected 7 failed"});
}

// detach

TEST_F(WorkTest, ADetachThatIsRefusedWaits) {
  state->refuses = true;
  std::atomic<bool> finished = false;
  Work work = make();
  std::thread other = finish_when_waited_for(state, finished);
  expect_error(Errc::unsupported, {"no callbacks"}, [&] { std::move(work).detach(); });
  EXPECT_TRUE(finished);
  other.join();
}

// all

class WorkAll : public testing::Test {
 protected:
  WorkAll() {
    for (std::uint64_t i = 0; i < 3; ++i) {
      states.push_back(std::make_shared<HandState>());
      owners.push_back(std::make_shared<HandOwner>());
      works.emplace_back(states[i], owners[i], i);
    }
  }
  ~WorkAll() override {
    for (const auto& state : states) state->finish();  // The Works wait for them.
  }
  std::vector<std::shared_ptr<HandState>> states;
  std::vector<std::shared_ptr<HandOwner>> owners;
  std::vector<Work> works;
};

TEST_F(WorkAll, OfNothingIsFinished) {
  EXPECT_TRUE(Work::all({}).done());
  std::vector<Work> finished(3);
  EXPECT_TRUE(Work::all(finished).done());
}

TEST_F(WorkAll, AnUncollectedErrorReachesTheGroupsThatFailedAndNoOthers) {
  {
    const Work all = Work::all(works);
    states[0]->finish();
    states[1]->fail_with(Errc::peer_lost, "of one");
    states[2]->finish();
  }
  EXPECT_EQ(owners[0]->events, Events{"collected 0 well"});
  EXPECT_EQ(owners[1]->events, (Events{"collected 1 failed", "uncollected of one"}));
  EXPECT_EQ(owners[2]->events, Events{"collected 2 well"});
}

TEST_F(WorkAll, IsAbortedOnlyWhereItStillRuns) {
  for (std::size_t i = 0; i < 3; ++i)
    owners[i]->on_abort = [this, i] { states[i]->fail_with(Errc::aborted, "aborted"); };
  try {
    const Work all = Work::all(works);
    states[1]->finish();
    throw std::runtime_error("something else");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(owners[0]->events.at(0), "abort");
  EXPECT_EQ(owners[1]->events, Events{"collected 1 well"});
  EXPECT_EQ(owners[2]->events.at(0), "abort");
}

TEST_F(WorkAll, ThenRunsOnceAfterTheLast) {
  int ran = 0;
  Work after = Work::all(works).then([&] { ++ran; });
  states[1]->finish();
  states[2]->finish();
  EXPECT_EQ(ran, 0);
  EXPECT_FALSE(after.done());
  states[0]->finish();
  EXPECT_EQ(ran, 1);
  after.wait();
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(owners[i]->events, Events{"collected " + std::to_string(i) + " well"});
}

TEST_F(WorkAll, ThenRunsOnceWhenAllEndAtTheSameTime) {
  for (int round = 0; round < 200; ++round) {
    std::vector<std::shared_ptr<HandState>> parts;
    std::vector<Work> calls;
    for (int i = 0; i < 3; ++i) {
      parts.push_back(std::make_shared<HandState>());
      calls.emplace_back(parts.back());
    }
    std::atomic<int> ran = 0;
    Work after = Work::all(calls).then([&] { ++ran; });
    std::vector<std::thread> threads;
    for (const auto& part : parts) threads.emplace_back([part] { part->finish(); });
    after.wait();
    EXPECT_EQ(ran, 1);
    for (auto& thread : threads) thread.join();
  }
}

TEST_F(WorkAll, ThenDoesNotRunWhenOneFails) {
  int ran = 0;
  Work after = Work::all(works).then([&] { ++ran; });
  states[0]->finish();
  states[1]->fail_with(Errc::timeout, "of one");
  states[2]->finish();
  expect_error(Errc::timeout, {"of one"}, [&] { after.wait(); });
  EXPECT_EQ(ran, 0);
}

TEST_F(WorkAll, ThenThatThrowsIsReportedToAGroup) {
  {
    const Work after = Work::all(works).then([] { fail(Errc::backend, "the hook failed"); });
    for (const auto& state : states) state->finish();
  }
  int told = 0;
  for (const auto& owner : owners)
    for (const auto& event : owner->events) told += event == "uncollected the hook failed" ? 1 : 0;
  EXPECT_EQ(told, 1);
}

TEST_F(WorkAll, BlockStreamReachesEveryPart) {
  int queue = 0;
  Work all = Work::all(works);
  all.block_stream({&queue});
  for (const auto& state : states) {
    EXPECT_EQ(state->ordered, std::vector<Stream>{Stream{&queue}});
    state->finish();
  }
}

TEST_F(WorkAll, DetachReportsTheErrorToTheGroupThatFailed) {
  const auto kept = std::make_shared<int>(1);
  Work::all(works).detach(kept);
  states[0]->finish();
  states[1]->fail_with(Errc::peer_lost, "of one");
  EXPECT_EQ(kept.use_count(), 2);
  states[2]->finish();
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_EQ(owners[1]->events, (Events{"collected 1 failed", "uncollected of one"}));
  EXPECT_EQ(owners[2]->events, Events{"collected 2 well"});
}

TEST_F(WorkAll, MayBeNested) {
  std::vector<Work> outer;
  outer.push_back(Work::all(std::span(works).first(2)));
  outer.push_back(std::move(works[2]));
  Work all = Work::all(outer);
  states[0]->finish();
  states[2]->finish();
  EXPECT_FALSE(all.done());
  states[1]->fail_with(Errc::timeout, "of one");
  expect_error(Errc::timeout, {"of one"}, [&] { all.wait(); });
  EXPECT_EQ(owners[1]->events, Events{"collected 1 failed"});
}

}  // namespace
}  // namespace tutti
