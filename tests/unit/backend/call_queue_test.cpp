#include "backend/call_queue.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/sanitizers.hpp"

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;
using test::expect_error;

Call call(std::uint64_t seq, Deadline deadline = 20s) {
  return {.seq = seq, .deadline = deadline};
}

/// A job that calls a function, and stores the error with which it was dropped.
class FunctionJob final : public CallQueue::Job {
 public:
  explicit FunctionJob(std::function<void()> run = {}) : run_(std::move(run)) {}
  void run() noexcept override {
    if (run_) run_();
    const std::lock_guard lock(mutex_);
    ran_ = true;
    changed_.notify_all();
  }
  void drop(const Error& why) noexcept override {
    const std::lock_guard lock(mutex_);
    dropped_ = why;
    changed_.notify_all();
  }
  bool await_run() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 20s, [this] { return ran_; });
  }
  std::optional<Error> await_drop() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 20s, [this] { return dropped_.has_value(); });
    return dropped_;
  }
  bool ran() const {
    const std::lock_guard lock(mutex_);
    return ran_;
  }

 private:
  std::function<void()> run_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ran_ = false;
  std::optional<Error> dropped_;
};

/// A log of events in order.
class Order {
 public:
  void add(std::uint64_t seq) {
    const std::lock_guard lock(mutex_);
    order_.push_back(seq);
  }
  std::vector<std::uint64_t> get() const {
    const std::lock_guard lock(mutex_);
    return order_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::uint64_t> order_;
};

std::vector<std::uint64_t> count_to(std::uint64_t n) {
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t i = 0; i < n; ++i) numbers.push_back(i);
  return numbers;
}

class CallQueueTest : public testing::Test {
 protected:
  ~CallQueueTest() override { queue->stop(); }

  void run_inline(std::uint64_t seq) {
    queue->enter(call(seq));
    order.add(seq);
    queue->leave(seq);
  }
  std::shared_ptr<FunctionJob> submit(std::uint64_t seq) {
    auto job = std::make_shared<FunctionJob>([this, seq] { run_inline(seq); });
    queue->submit(seq, job);
    return job;
  }

  const std::shared_ptr<CallQueue> queue = std::make_shared<CallQueue>();
  Order order;
};

TEST_F(CallQueueTest, ACallWaitsForEverySmallerNumber) {
  std::vector<std::thread> threads;
  for (const std::uint64_t seq : {3U, 1U, 2U})
    threads.emplace_back([this, seq] { run_inline(seq); });
  std::this_thread::sleep_for(20ms);
  EXPECT_TRUE(order.get().empty()) << "number 0 has not ended";
  run_inline(0);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(order.get(), count_to(4));
}

TEST_F(CallQueueTest, OneCallAtATimeIsInItsTurn) {
  std::atomic<int> inside = 0;
  std::atomic<bool> alone = true;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::uint64_t seq = t; seq < 200; seq += 4) {
        queue->enter(call(seq));
        if (++inside != 1) alone = false;
        --inside;
        queue->leave(seq);
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(alone);
}

TEST_F(CallQueueTest, SkippedNumbersNeedNoCallWhateverTheirOrder) {
  queue->skip(2);
  queue->skip(1);
  run_inline(0);
  run_inline(3);
  queue->skip(4);
  queue->skip(6);
  run_inline(5);
  run_inline(7);
  EXPECT_EQ(order.get(), (std::vector<std::uint64_t>{0, 3, 5, 7}));
}

TEST_F(CallQueueTest, ASkipWakesTheWaiterBehindIt) {
  std::thread waiting([this] { run_inline(2); });
  std::this_thread::sleep_for(10ms);
  queue->skip(1);
  std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(order.get().empty()) << "number 0 has not ended";
  queue->skip(0);
  waiting.join();
  EXPECT_EQ(order.get(), std::vector<std::uint64_t>{2});
}

TEST_F(CallQueueTest, JobsAndInlineCallsShareTheOrder) {
  const auto job1 = submit(1);
  const auto job3 = submit(3);
  std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(order.get().empty());
  run_inline(0);
  run_inline(2);
  run_inline(4);
  ASSERT_TRUE(job3->await_run());
  EXPECT_TRUE(job1->ran());
  EXPECT_EQ(order.get(), count_to(5));
}

// Each thread chooses which of its calls are async; numbers come from one counter.
TEST_F(CallQueueTest, ThreadsThatSubmitRunAndSkipNeverLoseATurn) {
  constexpr std::uint64_t calls = 4000;
  std::atomic<std::uint64_t> next = 0;
  std::atomic<std::uint64_t> skipped = 0;
  std::mutex jobs_mutex;
  std::vector<std::shared_ptr<FunctionJob>> jobs;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < calls / 4; ++i) {
        const auto seq = next++;
        if ((i + t) % 3 == 0) {
          queue->skip(seq);
          ++skipped;
        } else if ((i + t) % 3 == 1) {
          auto job = submit(seq);
          const std::lock_guard lock(jobs_mutex);
          jobs.push_back(std::move(job));
        } else {
          run_inline(seq);
        }
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& job : jobs) ASSERT_TRUE(job->await_run());
  const auto ran = order.get();
  EXPECT_EQ(ran.size() + skipped, calls);
  for (std::size_t i = 1; i < ran.size(); ++i) ASSERT_LT(ran[i - 1], ran[i]);
}

TEST_F(CallQueueTest, ADeadlineNamesTheCallAndWhatItWaitsFor) {
  run_inline(0);
  const auto before = Deadline::Clock::now();
  expect_error(Errc::timeout, {"#3", "#1"}, [&] { queue->enter(call(3, 30ms)); });
  const auto took = Deadline::Clock::now() - before;
  EXPECT_GE(took, 30ms);
  EXPECT_LT(took, 5s);
}

TEST_F(CallQueueTest, WithBothTheEarlierOneCounts) {
  const Call soon{.seq = 1, .deadline = 20s, .timeout = 20ms};
  expect_error(Errc::timeout, {"#1"}, [&] { queue->enter(soon); });
  const Call due{.seq = 1, .deadline = 20ms, .timeout = 20s};
  expect_error(Errc::timeout, {"#1"}, [&] { queue->enter(due); });
}

TEST_F(CallQueueTest, ATurnSaysWhatIsLeftForACallThatWaited) {
  EXPECT_FALSE(queue->enter({.seq = 0, .timeout = 20s}).is_set());
  const auto before = Deadline::Clock::now();
  std::thread leaves([&] {
    std::this_thread::sleep_for(30ms);
    queue->leave(0);
  });
  const Deadline limit = queue->enter({.seq = 1, .timeout = 20s});
  leaves.join();
  ASSERT_TRUE(limit.is_set());
  EXPECT_GE(limit.time(), before + 20s);
  EXPECT_LT(limit.time(), Deadline::Clock::now() + 20s - 20ms);
  queue->leave(1);
}

TEST_F(CallQueueTest, AnExpiredDeadlineDoesNotRefuseACallWhoseTurnItIs) {
  queue->enter(call(0, -1s));
  queue->leave(0);
}

TEST_F(CallQueueTest, FailWakesEveryWaiterWithItsError) {
  std::vector<std::thread> threads;
  std::atomic<int> started = 0;
  std::atomic<int> woken = 0;
  for (const std::uint64_t seq : {1U, 2U, 3U})
    threads.emplace_back([&, seq] {
      ++started;
      expect_error(Errc::peer_lost, {"rank 2 is gone"}, [&] { queue->enter(call(seq)); });
      ++woken;
    });
  while (started < 3) std::this_thread::yield();
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(woken, 0);
  queue->fail(Error(Errc::peer_lost, "rank 2 is gone"));
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(woken, 3);
}

TEST_F(CallQueueTest, FailDropsNumberedJobsWithItsError) {
  const auto job = submit(1);
  queue->fail(Error(Errc::peer_lost, "rank 2 is gone"));
  const auto why = job->await_drop();
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(why->code(), Errc::peer_lost);
  EXPECT_FALSE(job->ran());
}

TEST_F(CallQueueTest, AfterFailCallsAreAbortedWithTheFirstCause) {
  queue->fail(Error(Errc::peer_lost, "the first"));
  queue->fail(Error(Errc::timeout, "the second"));
  const std::vector<std::string> texts{"broken", "the first"};
  expect_error(Errc::aborted, texts, [&] { queue->enter(call(0)); });
  expect_error(Errc::aborted, texts, [&] { queue->enter(call(5)); });
  expect_error(Errc::aborted, texts, [&] { queue->submit(0, std::make_shared<FunctionJob>()); });
}

TEST_F(CallQueueTest, AListenerGetsTheFirstFailureOnceButNotTheEnd) {
  std::vector<std::string> heard;
  const auto listener = [&](const Error& why) { heard.push_back(why.message()); };
  queue->on_failure(listener);
  queue->fail(Error(Errc::peer_lost, "the first"));
  queue->fail(Error(Errc::timeout, "the second"));
  EXPECT_EQ(heard, std::vector<std::string>{"the first"});
  queue->on_failure(listener);  // After the failure: at once.
  EXPECT_EQ(heard, (std::vector<std::string>{"the first", "the first"}));
  const auto other = std::make_shared<internal::CallQueue>();
  other->on_failure(listener);
  other->stop();
  EXPECT_EQ(heard.size(), 2);
}

TEST_F(CallQueueTest, AfterFailContinuationsStillRun) {
  queue->fail(Error(Errc::peer_lost, "gone"));
  const auto job = std::make_shared<FunctionJob>();
  queue->submit(job);
  EXPECT_TRUE(job->await_run());
}

TEST_F(CallQueueTest, CallsDoNotWakeAnIdleWorker) {
  const auto waits_of_worker = [this] {
    long waits = 0;
    const auto job = std::make_shared<FunctionJob>([&waits] {
      rusage usage{};
      getrusage(RUSAGE_THREAD, &usage);
      waits = usage.ru_nvcsw;
    });
    queue->submit(job);
    EXPECT_TRUE(job->await_run());
    return waits;
  };
  const auto before = waits_of_worker();
  for (std::uint64_t i = 0; i < 1000; ++i) {
    queue->enter(call(i));
    queue->leave(i);
    const auto until = std::chrono::steady_clock::now() + 20us;
    while (std::chrono::steady_clock::now() < until) continue;
  }
  EXPECT_LT(waits_of_worker() - before, 100) << "of 1000 calls";
}

TEST_F(CallQueueTest, ContinuationsRunBetweenNumberedCalls) {
  const auto numbered = submit(1);
  const auto soon = std::make_shared<FunctionJob>([this] { order.add(99); });
  queue->submit(soon);
  ASSERT_TRUE(soon->await_run()) << "number 1 cannot run yet, this does not wait for it";
  run_inline(0);
  ASSERT_TRUE(numbered->await_run());
  EXPECT_EQ(order.get(), (std::vector<std::uint64_t>{99, 0, 1}));
}

TEST_F(CallQueueTest, ATimedJobRunsAtItsMomentAndInTheOrderOfMoments) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::shared_ptr<FunctionJob>> jobs;
  for (const auto ms : {60, 20, 40})
    queue->submit_at(Deadline::after(std::chrono::milliseconds(ms)),
                     jobs.emplace_back(std::make_shared<FunctionJob>(
                         [this, ms] { order.add(static_cast<std::uint64_t>(ms)); })));
  ASSERT_TRUE(jobs.front()->await_run());
  EXPECT_GE(std::chrono::steady_clock::now() - start, 60ms);
  EXPECT_EQ(order.get(), (std::vector<std::uint64_t>{20, 40, 60}));
}

TEST_F(CallQueueTest, ATimedJobRunsWhileANumberedOneWaitsAndAfterAFailure) {
  const auto waiting = submit(1);
  const auto first = std::make_shared<FunctionJob>();
  queue->submit_at(Deadline::after(10ms), first);
  EXPECT_TRUE(first->await_run());
  EXPECT_FALSE(waiting->ran());
  queue->fail(Error(Errc::peer_lost, "gone"));
  const auto second = std::make_shared<FunctionJob>();
  queue->submit_at(Deadline::after(10ms), second);
  EXPECT_TRUE(second->await_run());
}

/// Says that nothing is left to do for it.
class OverJob final : public CallQueue::Job {
 public:
  void run() noexcept override {}
  void drop(const Error&) noexcept override {}
  bool is_over() const noexcept override { return true; }
};

TEST_F(CallQueueTest, TimedJobsThatAreOverAreNotKeptUntilTheirMoment) {
  std::vector<std::weak_ptr<OverJob>> jobs;
  for (int i = 0; i < 1000; ++i) {
    auto job = std::make_shared<OverJob>();
    jobs.push_back(job);
    queue->submit_at(Deadline::after(1h), std::move(job));
  }
  EXPECT_LE(std::ranges::count_if(jobs, [](const auto& job) { return !job.expired(); }), 64);
}

// AddressSanitizer sees a worker that waits for a moment which has moved.
TEST_F(CallQueueTest, TimedJobsMayBeAddedWhileTheWorkerWaitsForOne) {
  const auto first = std::make_shared<FunctionJob>();
  queue->submit_at(Deadline::after(50ms), first);
  std::this_thread::sleep_for(10ms);
  for (int i = 0; i < 100; ++i)
    queue->submit_at(Deadline::after(1h), std::make_shared<FunctionJob>());
  EXPECT_TRUE(first->await_run());
}

TEST_F(CallQueueTest, StopEndsTheWorkerWithoutItsTimedJobs) {
  const auto job = std::make_shared<FunctionJob>();
  queue->submit_at(Deadline::after(1h), job);
  queue->stop();
  EXPECT_FALSE(job->ran());
  queue->submit_at(Deadline::after(0ms), job);
  EXPECT_FALSE(job->ran());
}

TEST_F(CallQueueTest, StopJoinsTheWorkerAndDropsWhatCameTooLate) {
  const auto waiting = submit(1);
  queue->stop();
  EXPECT_EQ(waiting->await_drop()->code(), Errc::aborted);
  const auto late = std::make_shared<FunctionJob>();
  queue->submit(late);
  EXPECT_EQ(late->await_drop()->code(), Errc::aborted);
  EXPECT_FALSE(late->ran());
  expect_error(Errc::aborted, {}, [&] { queue->submit(2, std::make_shared<FunctionJob>()); });
  expect_error(Errc::aborted, {}, [&] { queue->enter(call(0)); });
}

TEST_F(CallQueueTest, StopWaitsForTheJobThatRuns) {
  std::atomic<bool> started = false;
  std::atomic<bool> ended = false;
  const auto job = std::make_shared<FunctionJob>([&] {
    started = true;
    std::this_thread::sleep_for(30ms);
    ended = true;
  });
  queue->submit(job);
  while (!started) std::this_thread::yield();
  queue->stop();
  EXPECT_TRUE(ended);
}

TEST_F(CallQueueTest, StopMayComeFromAJobOfItsOwnWorker) {
  const auto job = std::make_shared<FunctionJob>([this] { queue->stop(); });
  queue->submit(job);
  ASSERT_TRUE(job->await_run());
  expect_error(Errc::aborted, {}, [&] { queue->submit(0, std::make_shared<FunctionJob>()); });
}

// The worker keeps the queue alive until it has ended; otherwise it would read freed memory.
TEST_F(CallQueueTest, TheLastReferenceMayDieOnTheWorker) {
  for (int round = 0; round < 50; ++round) {
    auto own = std::make_shared<CallQueue>();
    std::weak_ptr<CallQueue> watch = own;
    auto last = std::make_shared<FunctionJob>([held = own]() { held->stop(); });
    own->submit(last);
    own.reset();
    ASSERT_TRUE(last->await_run());
    const auto until = Deadline(20s);
    last.reset();
    while (!watch.expired() && !until.expired()) std::this_thread::yield();
    ASSERT_FALSE(until.expired()) << "the queue is never given back";
  }
}

TEST_F(CallQueueTest, AWorkerThatCannotStartIsAnErrorOfItsJobs) {
  if (test::address_sanitizer || test::thread_sanitizer)
    GTEST_SKIP() << "a sanitizer needs address space of its own at any time";
  if (test::is_emulated()) GTEST_SKIP() << "the emulator applies no limit of memory";
  const auto end = test::in_child([&]() -> std::string {
    const rlimit nothing_more{1, 1};
    if (::setrlimit(RLIMIT_AS, &nothing_more) != 0) return "setrlimit";
    try {  // Stacks of ended threads are reused.
      for (;;) std::thread([] { std::this_thread::sleep_for(1h); }).detach();
    } catch (const std::system_error&) {
    }
    const auto continuation = std::make_shared<FunctionJob>();
    queue->submit(continuation);
    const auto dropped = continuation->await_drop();
    std::string output(dropped ? name_of(dropped->code()) : "ran");
    try {
      queue->submit(0, std::make_shared<FunctionJob>());
    } catch (const Error& error) {
      output += ' ' + std::string(name_of(error.code()));
    }
    return output;
  });
  EXPECT_TRUE(end.ended);
  EXPECT_EQ(end.output, "resource_exhausted resource_exhausted");
}

}  // namespace
}  // namespace tutti::internal
