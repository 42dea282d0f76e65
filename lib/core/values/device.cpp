#include <tutti/device.hpp>

#include <fmt/format.h>

namespace [[gnu::visibility("default")]] tutti {

std::string to_string(Device device) {
  switch (device.type) {
    case DeviceType::cpu:
      return "cpu";
    case DeviceType::cuda:
      return fmt::format("cuda:{}", device.index);
    case DeviceType::extension:
      return fmt::format("extension:{}", device.index);
  }
  return fmt::format("device type {}:{}", static_cast<int>(device.type), device.index);
}

}  // namespace tutti
