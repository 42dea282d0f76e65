#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backend/backend.hpp>
#include <tutti/group_options.hpp>

namespace tutti::internal {
struct RankLocation;
}

namespace [[gnu::visibility("default")]] tutti {

/// The arguments of BackendEntry::make, on one rank.
struct BackendInit {
  std::shared_ptr<Store> store;        ///< Never null; keys already prefixed by the group's name.
  int rank = 0;                        ///< 0 .. size - 1.
  int size = 1;                        ///< The number of ranks.
  std::string name{};                  ///< The group's.
  std::string args{};                  ///< The text after ':' in GroupOptions::backend.
  Device device{};                     ///< GroupOptions::device.
  Memory* memory = nullptr;            ///< GroupOptions::memory; may be null.
  std::chrono::nanoseconds timeout{};  ///< GroupOptions::timeout; also limits make().
  Logger logger{};                     ///< Never empty.
  std::optional<AdoptedCommunicator> adopt{};  ///< GroupOptions::adopt.
  /// Calls are compared between ranks, through the store, before they are launched. So failure()
  /// must report a dead rank even if no launched call waits for it.
  bool checked = false;
  /// GroupOptions::dead_after; 0: no rank is declared dead because it does not respond.
  std::chrono::nanoseconds dead_after{};
  /// Set in a part of another group.
  std::shared_ptr<const WholeGroup> whole{};
  /// For backends in the tree: the location of each rank. Empty: the ranks have not exchanged them.
  std::vector<std::shared_ptr<const internal::RankLocation>> locations{};

  /// The arguments for a sub-group of this group.
  BackendInit part(const SplitInit& split) const;
};

/// One row of the table that backends/meson.build generates.
struct BackendEntry {
  std::string_view name;                   ///< As in GroupOptions::backend, without arguments.
  std::string_view summary;                ///< One line for `tutti info`.
  bool (*serves)(Device device) noexcept;  ///< True if it serves the device directly.
  /// The reason why the backend cannot run on this machine; empty if it can.
  std::string (*unavailable)();
  /// Makes this rank's backend of a group; waits for the other ranks. @throws Error.
  std::unique_ptr<Backend> (*make)(const BackendInit& init);
  bool one_process = false;            ///< Ranks must be threads of one process.
  std::string (*details)() = nullptr;  ///< More lines for `tutti info`, about this machine.
  bool adopts = false;                 ///< make() uses BackendInit::adopt.
  int (*device_count)() = nullptr;     ///< Number of devices here, the host not counted.
  /// True if the backend serves this device through host memory. That is slow, so "auto" never
  /// chooses it. Null: the backend serves no device that way.
  bool (*stages)(Device device) noexcept = nullptr;
  bool receives_from_any = false;  ///< Its groups support Operation::recv_any.
  int most_ranks = 0;              ///< Of a group; 0: any number.
  /// The reason why "auto" passes over the backend here, although it may work; empty if there is
  /// none. Null: there never is.
  std::string (*unsuited)() = nullptr;
  /// True if the backend drives a faster network than TCP here. Null: it does not.
  bool (*is_beyond_tcp)() = nullptr;
};

/// The backends in this build.
std::span<const BackendEntry> backends() noexcept;

/// The result of choose_backend().
struct BackendChoice {
  const BackendEntry* entry = nullptr;  ///< Never null.
  std::string args{};                   ///< The text after ':'.
  std::string because{};                ///< The reason in words.
};
/// The places of a group's ranks.
enum class RankPlacement : std::uint8_t {
  threads,  ///< Of this process (Store::in_process()).
  host,     ///< Processes of one host.
  hosts,    ///< Processes of several hosts, at least one of which has several.
  apart     ///< One process on each of several hosts.
};
/// Returns the backend that "auto", "name" or "name:args" selects for a device, if all ranks can
/// use the same backends as this process. ProcessGroup::create() decides by what all ranks can use.
/// @throws Error invalid_argument for an unknown name; unsupported for a known backend that is not
///         built, cannot run here or does not serve the device.
BackendChoice choose_backend(std::string_view backend, Device device,
                             RankPlacement placement = RankPlacement::threads);

/// The names of all backends, of this build and of others.
std::span<const std::string_view> known_backends() noexcept;

}  // namespace tutti
