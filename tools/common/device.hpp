#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <tutti/backend/backend_table.hpp>
#include <tutti/device.hpp>

namespace tutti::tool {

/// The value of --device: "cpu"; "cuda": the ranks of a host take the devices in turn; "cuda:N":
/// the same device for all.
struct DeviceRequest {
  DeviceType type = DeviceType::cpu;
  std::optional<int> index{};
  friend bool operator==(const DeviceRequest&, const DeviceRequest&) = default;
};
/// @throws Failure usage.
DeviceRequest parse_device(std::string_view text);
std::string to_string(const DeviceRequest& request);

/// The device without --device: the host, unless the backend serves only other devices.
DeviceRequest usual_device(std::string_view backend);

/// The device of each rank of a host.
class DevicePlacement {
 public:
  DevicePlacement() = default;
  /// @throws Failure unavailable if this machine has no such device.
  DevicePlacement(const DeviceRequest& request, const BackendEntry& backend);
  Device of(int local_rank) const noexcept;

 private:
  DeviceRequest request_{};
  int count_ = 1;
};

}  // namespace tutti::tool
