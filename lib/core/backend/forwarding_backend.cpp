#include <tutti/backend/forwarding_backend.hpp>

#include <utility>

namespace [[gnu::visibility("default")]] tutti {

ForwardingBackend::ForwardingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {
  if (inner_ == nullptr)
    fail(Errc::invalid_argument, "ForwardingBackend: the inner backend is null; pass a backend");
}

bool ForwardingBackend::supports(Operation operation, DType dtype,
                                 ReduceOp::Kind reduce) const noexcept {
  return inner_->supports(operation, dtype, reduce);
}

bool ForwardingBackend::reproduces() const noexcept {
  return inner_->reproduces();
}

Memory& ForwardingBackend::memory() noexcept {
  return inner_->memory();
}

Work ForwardingBackend::launch(std::span<const Op> ops, const Call& call) {
  return inner_->launch(ops, call);
}

void ForwardingBackend::refuse(std::span<const Op> ops, const Call& call,
                               const Error& why) noexcept {
  inner_->refuse(ops, call, why);
}

std::unique_ptr<Backend> ForwardingBackend::split(const SplitInit& init) {
  return inner_->split(init);
}

void ForwardingBackend::abort(std::string_view why) noexcept {
  inner_->abort(why);
}

std::optional<Error> ForwardingBackend::failure() const {
  return inner_->failure();
}

std::string ForwardingBackend::transport() const {
  return inner_->transport();
}

RegistrationKind ForwardingBackend::registrable(const TensorView& block, Stream stream) const {
  return inner_->registrable(block, stream);
}

Registration ForwardingBackend::register_memory(const TensorView& block, RegistrationKind kind,
                                                Deadline limit) {
  return inner_->register_memory(block, kind, limit);
}

Memory& ForwardingBackend::registrable_memory() noexcept {
  return inner_->registrable_memory();
}

Memory& ForwardingBackend::staging_memory() noexcept {
  return inner_->staging_memory();
}

}  // namespace tutti
