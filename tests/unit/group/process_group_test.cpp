#include <tutti/process_group.hpp>

#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/autograd.hpp>
#include <tutti/backend/backend.hpp>
#include <tutti/backend/forwarding_backend.hpp>
#include <tutti/coalesce.hpp>
#include <tutti/ddp/gradient_reducer.hpp>
#include <tutti/ddp/local_sgd.hpp>
#include <tutti/gather.hpp>
#include <tutti/losses/smooth_ap.hpp>
#include <tutti/sync.hpp>

#include "support/errors.hpp"
#include "support/scoped_variables.hpp"

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

TEST(ProcessGroup, ABackendOfTheCallersOwnHasNoLocalRank) {
  const auto group = make_group(std::nullopt);
  expect_error(Errc::unsupported, {"group 'world'", "the caller made the Backend object"},
               [&] { (void)group.local_rank(); });
}

TEST(ProcessGroup, EveryFunctionOfAMovedFromGroupThrows) {
  ProcessGroup group = make_group(std::nullopt);
  ProcessGroup owner = std::move(group);
  float x[2]{};
  float y[2]{};
  const TensorView v(x);
  const TensorView w(y);
  const std::vector<std::function<void()>> all{
      [&] { (void)group.share(); },
      [&] { (void)group.rank(); },
      [&] { (void)group.size(); },
      [&] { (void)group.local_rank(); },
      [&] { (void)group.local_size(); },
      [&] { (void)group.name(); },
      [&] { (void)group.backend(); },
      [&] { (void)group.backend_reason(); },
      [&] { (void)group.transport(); },
      [&] { (void)group.memory(); },
      [&] { (void)group.registrable_memory(); },
      [&] { (void)group.supports(Operation::barrier, DType::u8); },
      [&] { (void)group.trace(); },
      [&] { (void)group.split(0); },
      [&] { (void)group.subset({0}); },
      [&] { (void)group.register_memory(v); },
      [&] { group.all_reduce(v); },
      [&] { (void)group.all_reduce(1.0); },
      [&] { (void)group.all_reduce_async(v, w); },
      [&] { group.broadcast(v, 0); },
      [&] { (void)group.broadcast_async(v, 0); },
      [&] { group.reduce(v, w, 0); },
      [&] { group.all_gather(v, w); },
      [&] { group.reduce_scatter(v, w); },
      [&] { group.all_to_all(v, w); },
      [&] { group.gather(v, w, 0); },
      [&] { group.scatter(v, w, 0); },
      [&] { group.scan(v, w); },
      [&] { group.exclusive_scan(v, w); },
      [&] { group.barrier(); },
      [&] { (void)group.barrier_async(); },
      [&] { group.send(v, 0); },
      [&] { group.recv(v, 0); },
      [&] { (void)group.recv_async(v, 0); },
      [&] { group.sendrecv(v, 0, w, 0); },
      [&] { (void)group.sendrecv_async(v, 0, w, 0); },
      [&] { (void)all_gather_rows(group, v); },
      [&] { (void)all_gather_bytes(group, "x"); },
      [&] { (void)autograd::all_reduce(group, v); },
      [&] { (void)all_reduce_number(group, 1.0); },
      [&] { Coalesce together(group); },
      [&] { ddp::PeriodicModelAverager(group, 1); },
      [&] {
        ddp::GradientReducer(group, {{"x", v}});
      },
      [&] { (void)losses::SmoothAp()(group, {.logits = v, .targets = v}); },
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    expect_error(Errc::invalid_argument, {"has been moved from"}, all[i]);
  }
  group.abort("no group hears it");
  owner.barrier();
  group = std::move(owner);
  group.barrier();
}

TEST(ProcessGroup, ATimeOfDeathThatIsNonsenseIsRefused) {
  using namespace std::chrono_literals;
  for (const std::chrono::nanoseconds wrong :
       {-1ns, 1ns, std::chrono::nanoseconds(99ms), std::chrono::nanoseconds(25h)})
    expect_error(Errc::invalid_argument, {"dead_after", "0 (never)", "24 h"},
                 [&] { (void)ProcessGroup::create({.dead_after = wrong}); });
  for (const char* value : {"-1", "1.5", "ten", "86401"}) {
    const ScopedVariables set{{"TUTTI_DEAD_AFTER", value}};
    expect_error(Errc::invalid_argument, {"TUTTI_DEAD_AFTER", std::string("'") + value + "'"},
                 [] { (void)ProcessGroup::create({}); });
    EXPECT_NO_THROW((void)ProcessGroup::create({.dead_after = 1s})) << "the variable is not asked";
  }
  for (const char* value : {"", "0", "86400"}) {
    const ScopedVariables set{{"TUTTI_DEAD_AFTER", value}};
    EXPECT_NO_THROW((void)ProcessGroup::create({}));
  }
}

// The sum of one -0 is -0, unless it is reproducible.
TEST(ProcessGroup, AVariableMakesSumsReproducibleUnlessTheCallerDecides) {
  const auto keeps_sign = [](std::optional<bool> option, const CallOptions& call = {}) {
    auto group = ProcessGroup::create({.backend = "local", .size = 1, .reproducible = option});
    float zero = -0.0F;
    group.all_reduce(std::span(&zero, 1), ReduceOp::sum, call);
    return std::signbit(zero);
  };
  EXPECT_TRUE(keeps_sign({}));
  EXPECT_FALSE(keeps_sign({}, {.reproducible = true}));
  const ScopedVariables set{{"TUTTI_REPRODUCIBLE", "1"}};
  EXPECT_FALSE(keeps_sign({}));
  EXPECT_TRUE(keeps_sign(false));
}

TEST(ProcessGroup, EndsWithItsLastHandle) {
  const auto backend = [](std::shared_ptr<int> held) {
    struct Held final : ForwardingBackend {
      Held(std::shared_ptr<int> value, std::unique_ptr<Backend> inner)
          : ForwardingBackend(std::move(inner)), kept(std::move(value)) {}
      std::shared_ptr<int> kept;
    };
    return std::make_unique<Held>(std::move(held), std::make_unique<EndedBackend>(std::nullopt));
  };
  const auto held = std::make_shared<int>();
  auto group = std::make_optional(ProcessGroup::create({}, backend(held)));
  auto other = std::make_optional(group->share());
  EXPECT_EQ(other->name(), group->name());
  group.reset();
  EXPECT_EQ(held.use_count(), 2);
  other->barrier();
  other.reset();
  EXPECT_EQ(held.use_count(), 1);
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
