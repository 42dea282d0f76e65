#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <tutti/backend/backend_table.hpp>
#include <tutti/device.hpp>

namespace tutti::tool {

/// What --device says: "cpu"; "cuda", of which the ranks of a host take turns; "cuda:N" for all.
struct DeviceRequest {
  DeviceType type = DeviceType::cpu;
  std::optional<int> index{};
  friend bool operator==(const DeviceRequest&, const DeviceRequest&) = default;
};
/// @throws Failure usage.
DeviceRequest parse_device(std::string_view text);
std::string to_string(const DeviceRequest& request);

/// Without --device: the host, unless this backend serves other devices alone.
DeviceRequest usual_device(std::string_view backend);

/// Which device each rank of a host has.
class DevicePlacement {
 public:
  DevicePlacement() = default;
  /// @throws Failure unavailable when this machine has no such device.
  DevicePlacement(const DeviceRequest& request, const BackendEntry& backend);
  Device of(int local_rank) const noexcept;

 private:
  DeviceRequest request_{};
  int count_ = 1;
};

}  // namespace tutti::tool
