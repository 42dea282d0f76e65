#include <tutti/backend/forwarding_backend.hpp>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/errors.hpp"

namespace tutti::test {
namespace {

/// Writes down which function was called with what, and returns values that no default returns.
class Noting final : public Backend {
 public:
  explicit Noting(std::vector<std::string>& notes) : notes_(notes) {}

  bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept override {
    note(std::string("supports ") + name_of(operation).data() + ' ' + name_of(dtype).data() + ' ' +
         name_of(reduce).data());
    return true;
  }
  Memory& memory() noexcept override { return one_; }
  Work launch(std::span<const Op> ops, const Call& call) override {
    note("launch " + std::to_string(ops.size()) + " as " + std::to_string(call.seq));
    throw Error(Errc::backend, "launched");
  }
  void refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept override {
    note("refuse " + std::to_string(ops.size()) + " as " + std::to_string(call.seq) + ": " +
         why.message());
  }
  std::unique_ptr<Backend> split(const SplitInit& init) override {
    note("split " + init.name);
    return std::make_unique<Noting>(notes_);
  }
  void abort(std::string_view why) noexcept override { note("abort " + std::string(why)); }
  std::optional<Error> failure() const override { return Error(Errc::peer_lost, "gone"); }
  std::string transport() const override { return "carrier pigeons"; }
  RegistrationKind registrable(const TensorView& block, Stream stream) const override {
    note("registrable " + std::to_string(block.bytes()) + (stream.handle ? " on a stream" : ""));
    return RegistrationKind::window;
  }
  Registration register_memory(const TensorView& block, RegistrationKind kind,
                               Deadline limit) override {
    note("register_memory " + std::to_string(block.bytes()) + (limit.is_set() ? " until" : ""));
    return Registration(std::make_shared<const RegistrationKind>(kind));
  }
  Memory& registrable_memory() noexcept override { return two_; }
  Memory& staging_memory() noexcept override { return three_; }

 private:
  struct Own final : Memory {
    void* allocate(std::size_t, Stream) override { return nullptr; }
    void release(void*, std::size_t, Stream) noexcept override {}
    void copy(void*, const void*, std::size_t, Stream) override {}
    Device device() const noexcept override { return {}; }
  };
  void note(std::string text) const { notes_.push_back(std::move(text)); }

  std::vector<std::string>& notes_;
  Own one_;
  Own two_;
  Own three_;
};

/// Changes nothing.
class Plain final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  using ForwardingBackend::inner;
};

TEST(ForwardingBackend, ForwardsEveryFunction) {
  std::vector<std::string> notes;
  Plain plain(std::make_unique<Noting>(notes));
  Backend& outer = plain;
  const std::vector<Op> ops(2);
  const Call call{.seq = 7};
  int place = 0;
  std::vector<float> values(3);
  const TensorView block(values);

  EXPECT_TRUE(outer.supports(Operation::scan, DType::f64, ReduceOp::Kind::max));
  expect_error(Errc::backend, {"launched"}, [&] { (void)outer.launch(ops, call); });
  outer.refuse(ops, call, Error(Errc::unsupported, "too late"));
  const std::vector<int> ranks{0};
  const auto part = outer.split({.ranks = ranks, .name = "part", .store = nullptr});
  EXPECT_NE(dynamic_cast<Noting*>(part.get()), nullptr);
  outer.abort("enough");
  ASSERT_TRUE(outer.failure().has_value());
  EXPECT_EQ(outer.failure()->message(), "gone");
  EXPECT_EQ(outer.transport(), "carrier pigeons");
  EXPECT_EQ(outer.registrable(block, Stream{&place}), RegistrationKind::window);
  EXPECT_EQ(outer.register_memory(block, RegistrationKind::buffer, Deadline::none()).kind(),
            RegistrationKind::buffer);
  EXPECT_EQ(&outer.memory(), &plain.inner().memory());
  EXPECT_EQ(&outer.registrable_memory(), &plain.inner().registrable_memory());
  EXPECT_EQ(&outer.staging_memory(), &plain.inner().staging_memory());
  EXPECT_EQ(notes,
            (std::vector<std::string>{"supports scan f64 max", "launch 2 as 7",
                                      "refuse 2 as 7: too late", "split part", "abort enough",
                                      "registrable 12 on a stream", "register_memory 12 until"}));
}

TEST(ForwardingBackend, RefusesNull) {
  expect_error(Errc::invalid_argument, {"ForwardingBackend", "null", "pass a backend"},
               [] { Plain plain(nullptr); });
}

}  // namespace
}  // namespace tutti::test
