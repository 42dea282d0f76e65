#pragma once

#include <cstdint>
#include <string>

#include <tutti/format.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// Device types with the values of DLDeviceType. `extension` is a device of the embedder (DLPack's
/// kDLExtDev).
enum class DeviceType : std::int32_t { cpu = 1, cuda = 2, extension = 12 };

struct Device {
  DeviceType type = DeviceType::cpu;
  std::int32_t index = 0;
  friend constexpr bool operator==(Device, Device) = default;
};

/// "cpu", "cuda:1".
std::string to_string(Device device);

/// An opaque queue of a device (cudaStream_t); null is the device's default stream. Ignored for
/// host memory.
struct Stream {
  void* handle = nullptr;
  friend constexpr bool operator==(Stream, Stream) = default;
};

}  // namespace tutti
