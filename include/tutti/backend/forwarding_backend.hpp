#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <tutti/backend/backend.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// Base class of decorators (GroupOptions::decorate): every function calls the same function of the
/// inner backend. A derived class overrides the functions that it changes.
class ForwardingBackend : public Backend {
 public:
  /// @throws Error invalid_argument for null.
  explicit ForwardingBackend(std::unique_ptr<Backend> inner);

  bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept override;
  bool reproduces() const noexcept override;
  Memory& memory() noexcept override;
  Work launch(std::span<const Op> ops, const Call& call) override;
  void refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept override;
  /// The inner backend's sub-group, without a decorator.
  std::unique_ptr<Backend> split(const SplitInit& init) override;
  void abort(std::string_view why) noexcept override;
  std::optional<Error> failure() const override;
  std::string transport() const override;
  RegistrationKind registrable(const TensorView& block, Stream stream) const override;
  Registration register_memory(const TensorView& block, RegistrationKind kind,
                               Deadline limit) override;
  Memory& registrable_memory() noexcept override;
  Memory& staging_memory() noexcept override;

 protected:
  Backend& inner() const noexcept { return *inner_; }  ///< Lives as long as this.

 private:
  std::unique_ptr<Backend> inner_;
};

}  // namespace tutti
