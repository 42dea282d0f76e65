#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tutti/backend/backend_table.hpp>

#include "values/fail.hpp"

// backend_list.inc, which backends/meson.build generates, has one line TUTTI_BACKEND(name) per
// backend of this build.
#define TUTTI_BACKEND(name)               \
  namespace name {                        \
  extern const tutti::BackendEntry entry; \
  }
namespace tutti::backend {
#include "backend_list.inc"
}
#undef TUTTI_BACKEND

namespace [[gnu::visibility("default")]] tutti {

Backend::~Backend() = default;

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

std::span<const BackendEntry> backends() noexcept {
  // The entries are constants of other sources, which may be initialised after constants of this
  // source. The first call copies them.
  static const std::array table{
#define TUTTI_BACKEND(name) backend::name::entry,
#include "backend_list.inc"
#undef TUTTI_BACKEND
  };
  return table;
}

namespace {
constexpr std::array<std::string_view, 0> planned{};
}

std::span<const std::string_view> known_backends() noexcept {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const auto& entry : backends()) all.push_back(entry.name);
    for (const std::string_view name :
         {"gloo", "shm", "ucx", "nccl", "hier"})  // Backends that other builds have.
      if (std::ranges::find(all, name) == all.end()) all.push_back(name);
    for (const std::string_view name : planned)
      if (std::ranges::find(all, name) == all.end()) all.push_back(name);
    return all;
  }();
  return names;
}

bool is_planned(std::string_view backend) noexcept {
  return std::ranges::find(planned, backend) != std::end(planned) &&
         std::ranges::find(backends(), backend, &BackendEntry::name) == backends().end();
}

namespace {

std::string built() {
  std::string text;
  for (const auto& entry : backends()) text += fmt::format(" {}", entry.name);
  return text;
}

bool stages(const BackendEntry& entry, Device device) {
  return entry.stages != nullptr && entry.stages(device);
}

/// The reason why a backend cannot be used; empty if it can. `by_name`: the caller named the
/// backend, so it may also stage the arrays of the device.
std::string obstacle(const BackendEntry& entry, Device device, bool one_process, bool by_name) {
  if (auto why = entry.unavailable(); !why.empty()) return why;
  if (by_name && stages(entry, device)) return {};
  if (!entry.serves(device)) return fmt::format("it does not serve {}", to_string(device));
  if (entry.one_process && !one_process) return "its ranks are threads of one process";
  return {};
}

/// Advice for the error of "auto", which never chooses staging: the first backend that stages
/// arrays of this device. Empty if there is none.
std::string staging(Device device) {
  for (const auto& entry : backends())
    if (stages(entry, device) && entry.unavailable().empty())
      return fmt::format(
          "; pass backend = \"{}\" to stage arrays through host memory, which is slow", entry.name);
  return {};
}

}  // namespace

BackendChoice choose_backend(std::string_view backend, Device device, bool one_process) {
  const auto colon = backend.find(':');
  const auto name = backend.substr(0, colon);
  const std::string args(colon == std::string_view::npos ? "" : backend.substr(colon + 1));
  if (name == "auto") {
    std::string tried;
    for (const auto& entry : backends()) {
      const auto why = obstacle(entry, device, one_process, false);
      if (why.empty())
        return {&entry, args,
                fmt::format("it is the first that serves {}{}", to_string(device),
                            tried.empty() ? "" : "; not " + tried)};
      tried += fmt::format("{}{}: {}", tried.empty() ? "" : ", ", entry.name, why);
    }
    internal::failf(Errc::unsupported, "no backend serves {} here ({}){}", to_string(device), tried,
                    staging(device));
  }
  for (const auto& entry : backends()) {
    if (entry.name != name) continue;
    if (const auto why = obstacle(entry, device, true, true); !why.empty())
      internal::failf(Errc::unsupported, "backend '{}' cannot be used: {}", name, why);
    return {&entry, args, "it was asked for by name"};
  }
  if (is_planned(name))
    internal::failf(Errc::unsupported, "backend '{}' is not written yet; this build has:{}", name,
                    built());
  if (std::ranges::find(known_backends(), name) != known_backends().end())
    internal::failf(Errc::unsupported, "backend '{}' is not in this build, which has:{}", name,
                    built());
  internal::failf(Errc::invalid_argument, "unknown backend '{}'; known are auto, {}", name,
                  fmt::join(known_backends(), ", "));
}

}  // namespace tutti
