#include <tutti/process_group.hpp>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include <tutti/backend/backend.hpp>

#include "support/errors.hpp"

namespace tutti::test {
namespace {

/// A call that has already ended, with or without an error.
class Ended final : public WorkState, public std::enable_shared_from_this<Ended> {
 public:
  explicit Ended(std::exception_ptr error) noexcept : error_(std::move(error)) {}
  bool done() const noexcept override { return true; }
  bool wait_until(Deadline) override { return true; }
  std::exception_ptr error() const noexcept override { return error_; }
  void block_stream(Stream) override {}
  std::shared_ptr<WorkState> then(std::function<void()>) override { return shared_from_this(); }
  std::shared_ptr<WorkState> on_done(std::function<void(const Error*)>) override {
    return shared_from_this();
  }

 private:
  std::exception_ptr error_;
};

/// A backend whose calls end at once, blocking ones included, in a Work with the error.
class EndedBackend final : public Backend {
 public:
  explicit EndedBackend(std::optional<Error> error) : error_(std::move(error)) {}
  bool supports(Operation, DType, ReduceOp::Kind) const noexcept override { return true; }
  Memory& memory() noexcept override { return host_memory(); }
  Work launch(std::span<const Op>, const Call&) override {
    return Work(std::make_shared<Ended>(error_ ? std::make_exception_ptr(*error_) : nullptr));
  }
  void refuse(std::span<const Op>, const Call&, const Error&) noexcept override {}
  void abort(std::string_view) noexcept override {}
  std::optional<Error> failure() const override { return std::nullopt; }

 private:
  std::optional<Error> error_;
};

ProcessGroup make_group(std::optional<Error> error) {
  return ProcessGroup::create({}, std::make_unique<EndedBackend>(std::move(error)));
}

TEST(ProcessGroup, ABlockingCallThrowsTheErrorInTheWorkOfItsBackend) {
  const Error lost(Errc::peer_lost, "the cable was pulled");
  ProcessGroup group = make_group(lost);
  expect_error(Errc::peer_lost, {"barrier #0", "cable"}, [&] { group.barrier(); });
  expect_error(Errc::aborted, {"cable"}, [&] { group.barrier(); });
}

TEST(ProcessGroup, ABlockingMessageThrowsTheErrorInTheWorkOfItsBackend) {
  ProcessGroup group = make_group(Error(Errc::peer_lost, "the cable was pulled"));
  const float value = 0;
  const ConstTensorView data(&value, DType::f32, {1});
  expect_error(Errc::peer_lost, {"cable"}, [&] { group.send(data, 0); });
}

TEST(ProcessGroup, ABlockingCallTakesAWorkThatEndedWell) {
  ProcessGroup group = make_group(std::nullopt);
  group.barrier();
  ASSERT_EQ(group.trace().size(), 1U);
  EXPECT_EQ(group.trace()[0].state, TraceEntry::State::done);
}

}  // namespace
}  // namespace tutti::test
