#pragma once

#include <cstdint>
#include <string>

#include <tutti/format.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// Device types with the values of DLDeviceType. `extension` is a device of the embedder (DLPack's
/// kDLExtDev).
enum class DeviceType : std::int32_t { cpu = 1, cuda = 2, extension = 12 };

/// The place of an array. The host is {cpu, 0}, the default. A value type.
struct Device {
  DeviceType type = DeviceType::cpu;  ///< cpu for pinned host memory, too.
  std::int32_t index = 0;             ///< As CUDA numbers the devices of this process; 0 for cpu.
  friend constexpr bool operator==(Device, Device) = default;
};

/// "cpu", "cuda:1".
std::string to_string(Device device);

/// An opaque queue of a device (cudaStream_t); null is the device's default stream. Ignored for
/// host memory.
struct Stream {
  void* handle = nullptr;  ///< cudaStream_t, not owned.
  friend constexpr bool operator==(Stream, Stream) = default;
};

}  // namespace tutti
