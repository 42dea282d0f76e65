#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <tutti/backend/backend.hpp>

namespace tutti::test {

/// A decorator that changes nothing, the base of the other decorators.
class ForwardBackend : public Backend {
 public:
  explicit ForwardBackend(std::unique_ptr<Backend> inner) noexcept : inner_(std::move(inner)) {}

  bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept override {
    return inner_->supports(operation, dtype, reduce);
  }
  Memory& memory() noexcept override { return inner_->memory(); }
  Work launch(std::span<const Op> ops, const Call& call) override {
    return inner_->launch(ops, call);
  }
  void refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept override {
    inner_->refuse(ops, call, why);
  }
  std::unique_ptr<Backend> split(const SplitInit& init) override { return inner_->split(init); }
  void abort(std::string_view why) noexcept override { inner_->abort(why); }
  std::optional<Error> failure() const override { return inner_->failure(); }
  std::string transport() const override { return inner_->transport(); }
  RegistrationKind registrable(const TensorView& block, Stream stream) const override {
    return inner_->registrable(block, stream);
  }
  Registration register_memory(const TensorView& block, RegistrationKind kind,
                               Deadline limit) override {
    return inner_->register_memory(block, kind, limit);
  }
  Memory& registrable_memory() noexcept override { return inner_->registrable_memory(); }
  Memory& staging_memory() noexcept override { return inner_->staging_memory(); }

 protected:
  Backend& inner() const noexcept { return *inner_; }

 private:
  std::unique_ptr<Backend> inner_;
};

}  // namespace tutti::test
