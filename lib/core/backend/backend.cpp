#include <tutti/backend/backend.hpp>

// Defaults of class Backend.

namespace [[gnu::visibility("default")]] tutti {

Backend::~Backend() = default;

bool Backend::reproduces() const noexcept {
  return false;
}

std::string Backend::transport() const {
  return {};
}

std::unique_ptr<Backend> Backend::split(const SplitInit&) {
  return nullptr;
}

RegistrationKind Backend::registrable(const TensorView&, Stream) const {
  return RegistrationKind::none;
}

Registration Backend::register_memory(const TensorView&, RegistrationKind, Deadline) {
  return {};
}

Memory& Backend::registrable_memory() noexcept {
  return memory();
}

Memory& Backend::staging_memory() noexcept {
  return host_memory();
}

}  // namespace tutti
