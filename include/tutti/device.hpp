#pragma once

#include <cstdint>
#include <string>

namespace [[gnu::visibility("default")]] tutti {

/// Values equal DLDeviceType, so the DLPack bridge is a cast. `extension` is a device the
/// embedder defines (DLPack's kDLExtDev).
enum class DeviceType : std::int32_t { cpu = 1, cuda = 2, extension = 12 };

struct Device {
  DeviceType type = DeviceType::cpu;
  std::int32_t index = 0;
  friend constexpr bool operator==(Device, Device) = default;
};

/// "cpu", "cuda:1".
std::string to_string(Device device);

/// An opaque queue of a device (cudaStream_t); null is the device's default one. Host memory has
/// no streams and ignores it.
struct Stream {
  void* handle = nullptr;
  friend constexpr bool operator==(Stream, Stream) = default;
};

}  // namespace tutti
