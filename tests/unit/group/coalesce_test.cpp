#include <tutti/coalesce.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/backend/forwarding_backend.hpp>

#include "support/errors.hpp"

// Tests one Coalesce on groups of one rank, whose launches are recorded. The conformance suite has
// several ranks.

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

/// A recorded launch.
struct Launch {
  std::string group;
  std::vector<Operation> operations;
  std::vector<std::vector<std::int64_t>> rows;
  std::string name;
  bool blocking = false;
  bool order_fixed = false;
  Stream stream{};
  std::chrono::nanoseconds timeout{};
};

class Launches {
 public:
  void add(Launch launch) {
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(launch));
  }
  std::vector<Launch> get() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Launch> all_;
};

class Recorder final : public ForwardingBackend {
 public:
  Recorder(std::unique_ptr<Backend> inner, std::string group, Launches& launches, const bool& fails)
      : ForwardingBackend(std::move(inner)),
        group_(std::move(group)),
        launches_(launches),
        fails_(fails) {}
  Work launch(std::span<const Op> ops, const Call& call) override {
    Launch seen{.group = group_,
                .operations = {},
                .rows = {},
                .name = std::string(call.name),
                .blocking = call.blocking,
                .order_fixed = call.order_fixed,
                .stream = call.stream,
                .timeout = call.timeout};
    for (const Op& op : ops) {
      seen.operations.push_back(op.kind);
      seen.rows.emplace_back(op.rows.list().begin(), op.rows.list().end());
    }
    launches_.add(std::move(seen));
    if (fails_) fail(Errc::backend, "injected");
    return inner().launch(ops, call);
  }

 private:
  std::string group_;
  Launches& launches_;
  const bool& fails_;
};

class CoalesceTest : public testing::Test {
 protected:
  ProcessGroup make(const std::string& name, const bool& fails = never) {
    return ProcessGroup::create({.backend = "local",
                                 .name = name,
                                 .checked = false,
                                 .logger = [](LogLevel, std::string_view) {},
                                 .decorate =
                                     [this, name, &fails](std::unique_ptr<Backend> inner) {
                                       return std::make_unique<Recorder>(std::move(inner), name,
                                                                         launches, fails);
                                     }});
  }
  static constexpr bool never = false;
  Launches launches;
  std::vector<float> data = std::vector<float>(4);
  std::vector<float> out = std::vector<float>(4);
};

TEST_F(CoalesceTest, SendsEverythingAsOneLaunchInTheOrderOfTheCalls) {
  auto group = make("a");
  Coalesce together(group);
  (void)group.broadcast_async(data, 0);
  (void)group.barrier_async();
  (void)group.all_reduce_async(data);
  EXPECT_TRUE(launches.get().empty());
  together.launch().wait();
  const auto all = launches.get();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].operations,
            (std::vector{Operation::broadcast, Operation::barrier, Operation::all_reduce}));
  EXPECT_FALSE(all[0].blocking);
}

TEST_F(CoalesceTest, EachGroupGetsOneLaunchInTheOrderOfTheList) {
  auto a = make("a");
  auto b = make("b");
  auto c = make("c");
  Coalesce together({&b, &a, &c});
  (void)a.barrier_async();
  (void)b.barrier_async();
  (void)a.all_reduce_async(data);
  together.launch().wait();
  const auto all = launches.get();
  ASSERT_EQ(all.size(), 2U) << "nothing was called on c";
  EXPECT_EQ(all[0].group, "b");
  EXPECT_EQ(all[1].group, "a");
  EXPECT_EQ(all[1].operations, (std::vector{Operation::barrier, Operation::all_reduce}));
}

TEST_F(CoalesceTest, OptionsOfTheFirstCallOfAGroupHoldForItsLaunch) {
  auto group = make("a");
  Coalesce together(group);
  {
    const std::string name = "a name that does not fit into the string itself";
    (void)group.all_reduce_async(data, ReduceOp::sum, {.order_fixed = true, .name = name});
  }
  (void)group.all_reduce_async(data, ReduceOp::sum, {.name = "second"});
  together.launch().wait();
  EXPECT_EQ(launches.get().at(0).name, "a name that does not fit into the string itself");
  EXPECT_TRUE(launches.get().at(0).order_fixed);
}

TEST_F(CoalesceTest, CopiesTheRowsOfEveryCall) {
  auto group = make("a");
  Coalesce together(group);
  for (int i = 0; i < 10; ++i) {
    std::vector<std::int64_t> rows{4};
    (void)group.all_gather_async(data, out, rows);
    rows[0] = -1;
  }
  together.launch().wait();
  const auto all = launches.get();
  ASSERT_EQ(all.at(0).rows.size(), 10U);
  for (const auto& rows : all[0].rows) EXPECT_EQ(rows, std::vector<std::int64_t>{4});
}

TEST_F(CoalesceTest, LaunchIsOnce) {
  auto group = make("a");
  Coalesce together(group);
  (void)group.barrier_async();
  together.launch().wait();
  expect_error(Errc::invalid_argument, {"launch()", "already"}, [&] { (void)together.launch(); });
  EXPECT_EQ(launches.get().size(), 1U);
  group.barrier();
}

TEST_F(CoalesceTest, AGroupCollectsForOneAtATime) {
  auto a = make("first");
  auto b = make("second");
  Coalesce outer(a);
  expect_error(Errc::invalid_argument, {"first", "already"}, [&] { const Coalesce inner(a); });
  expect_error(Errc::invalid_argument, {"first"}, [&] { const Coalesce inner({&b, &a}); });
  b.barrier();  // It has been released.
  expect_error(Errc::invalid_argument, {"second"}, [&] { const Coalesce twice({&b, &b}); });
  b.barrier();
  (void)a.barrier_async();
  outer.launch().wait();
  Coalesce next(a);
  next.launch().wait();
}

TEST_F(CoalesceTest, ANullGroupIsRefusedAndTheOthersAreReleased) {
  auto group = make("a");
  expect_error(Errc::not_initialized, {"null"}, [&] { const Coalesce bad({&group, nullptr}); });
  group.barrier();
}

TEST_F(CoalesceTest, WaitingBeforeTheLaunchIsAnErrorThatSaysSo) {
  auto group = make("a");
  Coalesce together(group);
  Work one = group.all_reduce_async(data);
  EXPECT_FALSE(one.wait_for(1h));
  expect_error(Errc::invalid_argument, {"launch()"}, [&] { one.wait(); });
  Work two = group.all_reduce_async(data);
  expect_error(Errc::unsupported, {"launch()"}, [&] { (void)std::move(two).then([] {}); });
  together.launch().wait();
  EXPECT_EQ(launches.get().at(0).operations.size(), 2U);
}

TEST_F(CoalesceTest, AddTakesTheWorkOfItsCallsAlone) {
  auto group = make("a");
  auto other = make("b");
  Coalesce together(group);
  together.add(group.all_reduce_async(data));
  expect_error(Errc::invalid_argument, {"add()"}, [&] { together.add(other.barrier_async()); });
  together.launch().wait();
  expect_error(Errc::invalid_argument, {"add()"}, [&] { together.add(group.barrier_async()); });
}

TEST_F(CoalesceTest, EndingWithoutLaunchSendsNothingAndTheNextCallThrowsIt) {
  auto group = make("a");
  Work one;
  {
    const Coalesce forgotten(group);
    one = group.all_reduce_async(data);
    (void)group.barrier_async();
  }
  EXPECT_TRUE(one.done());
  expect_error(Errc::invalid_argument, {"without launch()"}, [&] { one.wait(); });
  EXPECT_TRUE(launches.get().empty());
  expect_error(Errc::invalid_argument, {"2 calls", "'a'", "launch()"}, [&] { group.barrier(); });
  expect_error(Errc::aborted, {"broken", "launch()"}, [&] { group.barrier(); });
}

TEST_F(CoalesceTest, AGroupWithoutCallsIsNotBroken) {
  auto a = make("a");
  auto b = make("b");
  {
    const Coalesce forgotten({&a, &b});
    (void)a.barrier_async();
  }
  b.barrier();
  EXPECT_THROW(a.barrier(), Error);
}

// Its peers made all the calls and must get an error.
TEST_F(CoalesceTest, AFailedLaunchBreaksTheGroupsBehindIt) {
  const bool always = true;
  auto a = make("a");
  auto b = make("b", always);
  auto c = make("c");
  Coalesce together({&a, &b, &c});
  (void)a.barrier_async();
  (void)b.barrier_async();
  (void)c.barrier_async();
  expect_error(Errc::backend, {"injected"}, [&] { (void)together.launch(); });
  EXPECT_THROW(b.barrier(), Error);
  EXPECT_THROW(c.barrier(), Error);
  for (const auto& launch : launches.get()) EXPECT_NE(launch.group, "c");
}

TEST_F(CoalesceTest, MayOutliveItsGroup) {
  std::optional<ProcessGroup> group = make("a");
  Coalesce together(*group);
  (void)group->all_reduce_async(data);
  group.reset();
  together.launch().wait();
  EXPECT_EQ(launches.get().size(), 1U);
}

TEST_F(CoalesceTest, AMovedGroupGoesOnCollecting) {
  auto first = make("a");
  Coalesce together(first);
  ProcessGroup second = std::move(first);
  (void)second.barrier_async();
  EXPECT_TRUE(launches.get().empty());
  together.launch().wait();
  EXPECT_EQ(launches.get().size(), 1U);
}

// The other thread uses a group whose Coalesce may be ending; a sanitizer detects accesses to freed
// memory.
TEST_F(CoalesceTest, OtherThreadsMayCallWhileOneComesAndGoes) {
  auto group = make("a");
  std::atomic<bool> stop = false;
  std::thread other([&] {
    std::vector<float> own(4);
    while (!stop) group.all_reduce(own);
  });
  for (int i = 0; i < 2000; ++i) {
    Coalesce together(group);
    (void)group.barrier_async();
    together.launch().wait();
  }
  stop = true;
  other.join();
}

TEST_F(CoalesceTest, TwoThreadsCollectOnTheirOwnGroups) {
  auto a = make("a");
  auto b = make("b");
  const auto work = [](ProcessGroup& group) {
    std::vector<float> own(4);
    for (int i = 0; i < 200; ++i) {
      Coalesce together(group);
      (void)group.barrier_async();
      (void)group.all_reduce_async(own);
      together.launch().wait();
    }
  };
  std::thread one([&] { work(a); });
  std::thread other([&] { work(b); });
  one.join();
  other.join();
  for (const auto& launch : launches.get()) EXPECT_EQ(launch.operations.size(), 2U);
  EXPECT_EQ(launches.get().size(), 400U);
}

}  // namespace
}  // namespace tutti::test
