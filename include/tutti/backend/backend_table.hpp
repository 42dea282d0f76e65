#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <tutti/backend/backend.hpp>
#include <tutti/group_options.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// What a backend of the table is made of, on one rank.
struct BackendInit {
  std::shared_ptr<Store> store;  ///< Never null; keys already prefixed by the group's name.
  int rank = 0;
  int size = 1;
  std::string name{};  ///< The group's.
  std::string args{};  ///< What follows ':' in GroupOptions::backend.
  Device device{};
  Memory* memory = nullptr;  ///< The embedder's own, or null.
  std::chrono::nanoseconds timeout{};
  Logger logger{};                             ///< Never empty.
  std::optional<AdoptedCommunicator> adopt{};  ///< GroupOptions::adopt.
};

/// One row of the table that backends/meson.build generates.
struct BackendEntry {
  std::string_view name;
  std::string_view summary;  ///< One line for `tutti info`.
  bool (*serves)(Device device) noexcept;
  /// Why it cannot run on this machine, or empty when it can.
  std::string (*unavailable)();
  std::unique_ptr<Backend> (*make)(const BackendInit& init);
  bool one_process = false;            ///< Its ranks are threads of one process.
  std::string (*details)() = nullptr;  ///< More for `tutti info`, in lines: what it would do here.
  bool adopts = false;                 ///< make() knows BackendInit::adopt.
  int (*device_count)() = nullptr;     ///< How many devices beside the host's it finds here.
  /// Whether it serves a device through host memory: that is slow, so only who asks for the backend
  /// by name gets it. Null: no device.
  bool (*stages)(Device device) noexcept = nullptr;
};

/// The backends in this build, in the order in which "auto" tries them.
std::span<const BackendEntry> backends() noexcept;

/// What "auto" (or "name", "name:args") means for a device, and the reason in words. `one_process`:
/// all ranks are threads of this process, as Store::in_process() tells.
struct BackendChoice {
  const BackendEntry* entry = nullptr;  ///< Never null.
  std::string args{};
  std::string because{};
};
/// @throws Error invalid_argument for an unknown name, unsupported for a known one that is not
///         built, cannot run here or does not serve the device.
BackendChoice choose_backend(std::string_view backend, Device device, bool one_process = true);

/// Every backend this library knows of, built or not.
std::span<const std::string_view> known_backends() noexcept;

}  // namespace tutti
