#include "values/library.hpp"

#include <dlfcn.h>

#include <fmt/format.h>

#include "values/fail.hpp"

namespace tutti::internal {

Library::Library(const std::vector<const char*>& names, std::string_view install)
    : install_(install) {
  std::string tried;
  for (const char* name : names) {
    handle_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    name_ = name;
    if (handle_ != nullptr) return;
  }
  for (const char* name : names) {
    handle_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    name_ = name;
    if (handle_ != nullptr) return;
    const char* why = ::dlerror();
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", why == nullptr ? name : why);
  }
  failf(Errc::unsupported, "{} cannot be loaded ({}); {}", names.front(), tried, install_);
}

void* Library::find(const char* name) const noexcept {
  return ::dlsym(handle_, name);
}

void* Library::symbol(const char* name) const {
  void* found = find(name);
  if (found == nullptr)
    failf(Errc::unsupported, "{} has no {}: it is too old; {}", name_, name, install_);
  return found;
}

}  // namespace tutti::internal
