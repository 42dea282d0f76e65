#include <tutti/backend/host_backend.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/coalesce.hpp>
#include <tutti/process_group.hpp>

#include "support/errors.hpp"

namespace tutti::test {
namespace {

/// A transport of one rank whose collectives are a function.
class FunctionBackend final : public HostBackend {
 public:
  explicit FunctionBackend(std::function<void(const Call&)> run)
      : HostBackend("world", 0), run_(std::move(run)) {}
  ~FunctionBackend() override { stop(); }

  bool supports(Operation, DType, ReduceOp::Kind) const noexcept override { return true; }
  Memory& memory() noexcept override { return host_memory(); }
  void abort(std::string_view why) noexcept override {
    fail_queued(Error(Errc::aborted, std::string(why)));
  }
  std::optional<Error> failure() const override { return std::nullopt; }

 protected:
  void run(std::span<const Op>, const Call& call) override { run_(call); }
  void publish(std::span<const Op>, const Call&, const Error&) noexcept override {}

 private:
  std::function<void(const Call&)> run_;
};

ProcessGroup make_group(std::function<void()> run) {
  return ProcessGroup::create(
      {}, std::make_unique<FunctionBackend>([run = std::move(run)](const Call&) { run(); }));
}

struct Foreign {
  std::function<void()> run;
  Errc code;
  const char* text;
};

std::vector<Foreign> foreign() {
  return {{[] { throw std::runtime_error("the wire is cut"); }, Errc::backend, "the wire is cut"},
          {[] { throw std::bad_alloc(); }, Errc::resource_exhausted, "memory"},
          {[] { throw 7; }, Errc::backend, "not a std::exception"}};
}

/// A transport of two ranks that posts so many messages, and then has no memory. Its messages end
/// by abort() alone.
class FullBackend final : public HostBackend {
 public:
  explicit FullBackend(std::size_t room) : HostBackend("world", 0), room_(room) {}
  ~FullBackend() override { stop(); }

  Memory& memory() noexcept override { return host_memory(); }
  void abort(std::string_view why) noexcept override {
    const Error cause(Errc::aborted, std::string(why));
    failure_ = cause;
    for (const auto& message : posted_) message.finish(&cause);
    fail_queued(cause);
  }
  std::optional<Error> failure() const override { return failure_; }

  std::vector<std::string> told;  ///< Refusals published to peers.
  std::ptrdiff_t under_way() const {
    return std::ranges::count_if(posted_,
                                 [](const auto& message) { return !message.state->done(); });
  }

 protected:
  void run(std::span<const Op>, const Call&) override {}
  std::shared_ptr<WorkState> post_one(const Op& op, const Call& call, Deadline) override {
    if (posted_.size() == room_) throw std::bad_alloc();
    return posted_.emplace_back(make_message(op, call)).state;
  }
  void publish(std::span<const Op> ops, const Call&, const Error& why) noexcept override {
    for (const Op& op : ops)
      told.push_back(std::string(name_of(op.kind)) + " " + std::to_string(op.peer) + ": " +
                     why.message());
  }

 private:
  std::size_t room_;
  std::vector<Posted> posted_;
  std::optional<Error> failure_;
};

struct Full {
  explicit Full(std::size_t room) : Full(std::make_unique<FullBackend>(room)) {}
  FullBackend& backend;
  ProcessGroup group;
  std::vector<float> in = std::vector<float>(4);
  std::vector<float> out = std::vector<float>(4);

 private:
  explicit Full(std::unique_ptr<FullBackend> made)
      : backend(*made),
        group(ProcessGroup::create({.store = make_memory_store(), .size = 2, .checked = false},
                                   std::move(made))) {}
};

TEST(HostBackend, WithoutMemoryForTheFirstMessageThePeersAreTold) {
  Full full(0);
  expect_error(Errc::resource_exhausted, {"memory"}, [&] { full.group.send(full.in, 1); });
  EXPECT_EQ(full.backend.told, std::vector<std::string>{"send 1: out of memory"});
  Full both(0);
  expect_error(Errc::resource_exhausted, {"memory"},
               [&] { both.group.sendrecv_async(both.in, 1, both.out, 0).wait(); });
  EXPECT_EQ(both.backend.told,
            (std::vector<std::string>{"send 1: out of memory", "recv 0: out of memory"}));
}

// A posted message cannot be withdrawn, so the group is aborted, on the peers too. The buffers are
// the caller's again when the call throws.
TEST(HostBackend, WithoutMemoryForTheSecondMessageTheGroupIsAborted) {
  for (const bool async : {false, true}) {
    Full full(1);
    expect_error(Errc::resource_exhausted, {"memory"}, [&] {
      async ? full.group.sendrecv_async(full.in, 1, full.out, 1).wait()
            : full.group.sendrecv(full.in, 1, full.out, 1);
    });
    ASSERT_TRUE(full.backend.failure().has_value());
    EXPECT_EQ(full.backend.failure()->code(), Errc::aborted);
    EXPECT_TRUE(full.backend.told.empty());
    EXPECT_EQ(full.backend.under_way(), 0);
  }
}

TEST(HostBackend, WhatATransportThrowsIsAnErrorOfABlockingCallAndBreaksTheGroup) {
  for (const auto& [run, code, text] : foreign()) {
    ProcessGroup group = make_group(run);
    expect_error(code, {"barrier #0", "'world'", text}, [&] { group.barrier(); });
    expect_error(Errc::aborted, {text}, [&] { group.barrier(); });
  }
}

TEST(HostBackend, WhatATransportThrowsIsAnErrorOfAnAsyncCallAndBreaksTheGroup) {
  for (const auto& [run, code, text] : foreign()) {
    ProcessGroup group = make_group(run);
    Work work = group.barrier_async();
    expect_error(code, {"barrier #0", "'world'", text}, [&] { work.wait(); });
    expect_error(Errc::aborted, {text}, [&] { group.barrier_async().wait(); });
  }
}

/// Messages under way, which a test ends in the place of a transport.
class Messages {
 public:
  using Finish = std::function<void(const Error*)>;
  void add(Finish finish) {
    const std::lock_guard lock(mutex_);
    pending_.push_back(std::move(finish));
  }
  /// Ends all of them on a thread of its own, as soon as there is one.
  void end(const Error* error) {
    std::thread([&] {
      std::vector<Finish> ending;
      while (ending.empty()) {
        std::this_thread::yield();
        const std::lock_guard lock(mutex_);
        ending.swap(pending_);
      }
      for (const auto& finish : ending) finish(error);
    }).join();
  }

 private:
  std::mutex mutex_;
  std::vector<Finish> pending_;
};

/// A transport whose messages end when the test says so.
class MessageBackend final : public HostBackend {
 public:
  explicit MessageBackend(Messages& messages) : HostBackend("world", 0), messages_(messages) {}
  ~MessageBackend() override { stop(); }

  Memory& memory() noexcept override { return host_memory(); }
  void abort(std::string_view why) noexcept override {
    fail_queued(Error(Errc::aborted, std::string(why)));
  }
  std::optional<Error> failure() const override { return std::nullopt; }

 protected:
  void run(std::span<const Op>, const Call&) override {}
  std::shared_ptr<WorkState> post_one(const Op& op, const Call& call, Deadline) override {
    auto message = make_message(op, call);
    messages_.add(std::move(message.finish));
    return message.state;
  }
  void publish(std::span<const Op>, const Call&, const Error&) noexcept override {}

 private:
  Messages& messages_;
};

class HostBackendMessages : public testing::Test {
 protected:
  Messages messages;
  ProcessGroup group = ProcessGroup::create({}, std::make_unique<MessageBackend>(messages));
  std::vector<float> values{1, 2};
};

TEST_F(HostBackendMessages, EndWhenTheyAreFinished) {
  Work work = group.recv_async(values, 0);
  EXPECT_FALSE(work.done());
  bool ran = false;
  Work next = std::move(work).then([&] { ran = true; });
  messages.end(nullptr);
  next.wait();
  EXPECT_TRUE(ran);
}

TEST_F(HostBackendMessages, AreWaitedForByABlockingCall) {
  std::thread transport([&] { messages.end(nullptr); });
  group.recv(values, 0);
  transport.join();
}

TEST_F(HostBackendMessages, CarryTheirErrorWithItsPlace) {
  Work work = group.send_async(values, 0, 3);
  const Error cut(Errc::peer_lost, "the wire is cut");
  messages.end(&cut);
  expect_error(Errc::peer_lost, {"send #0", "'world'", "the wire is cut"}, [&] { work.wait(); });
}

TEST_F(HostBackendMessages, MayEndAfterTheirGroup) {
  Work work = group.recv_async(values, 0);
  { const ProcessGroup gone = std::move(group); }
  messages.end(nullptr);
  work.wait();
}

TEST(HostBackend, ABackendWithoutMessagesSaysSo) {
  ProcessGroup group = make_group([] {});
  const float value = 0;
  const ConstTensorView data(&value, DType::f32, {1});
  expect_error(Errc::unsupported,
               {"send #0", "does not implement post_one() for send", "override it", "supports()"},
               [&] { group.send(data, 0); });
}

}  // namespace
}  // namespace tutti::test
