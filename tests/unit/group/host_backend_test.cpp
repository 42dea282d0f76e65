#include "group/host_backend.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/process_group.hpp>

#include "support/errors.hpp"

namespace tutti::internal {
namespace {

using test::expect_error;

/// A transport of one rank whose collectives are a function.
class FunctionBackend final : public HostBackend {
 public:
  explicit FunctionBackend(std::function<void()> run)
      : HostBackend("world", 0), run_(std::move(run)) {}
  ~FunctionBackend() override { stop(); }

  bool supports(Operation, DType, ReduceOp::Kind) const noexcept override { return true; }
  Memory& memory() noexcept override { return host_memory(); }
  void abort(std::string_view why) noexcept override {
    fail_queued(Error(Errc::aborted, std::string(why)));
  }
  std::optional<Error> failure() const override { return std::nullopt; }

 protected:
  void run(std::span<const Op>, const Call&) override { run_(); }
  std::shared_ptr<WorkState> post(std::span<const Op>, const Call&) override { return nullptr; }
  void publish(std::span<const Op>, const Call&, const Error&) noexcept override {}

 private:
  std::function<void()> run_;
};

ProcessGroup make_group(std::function<void()> run) {
  return ProcessGroup::create({}, std::make_unique<FunctionBackend>(std::move(run)));
}

struct Foreign {
  std::function<void()> run;
  Errc code;
  const char* text;
};

std::vector<Foreign> foreign() {
  return {{[] { throw std::runtime_error("the wire is cut"); }, Errc::backend, "the wire is cut"},
          {[] { throw std::bad_alloc(); }, Errc::resource_exhausted, "memory"},
          {[] { throw 7; }, Errc::backend, "no std::exception"}};
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

}  // namespace
}  // namespace tutti::internal
