#include "common/device.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "common/exit_code.hpp"
#include "common/text.hpp"

namespace tutti::tool {

DeviceRequest parse_device(std::string_view text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {DeviceType::cuda, {}};
  constexpr std::string_view numbered = "cuda:";
  if (!text.starts_with(numbered)) refuse("--device '{}': expected cpu, cuda or cuda:N", text);
  text.remove_prefix(numbered.size());
  return {DeviceType::cuda, static_cast<int>(parse_integer("--device cuda:N", text, 0,
                                                           std::numeric_limits<int>::max()))};
}

std::string to_string(const DeviceRequest& request) {
  std::string text = request.type == DeviceType::cpu ? "cpu" : "cuda";
  if (request.index) text += fmt::format(":{}", *request.index);
  return text;
}

DeviceRequest usual_device(std::string_view backend) {
  const std::string_view name = backend.substr(0, backend.find(':'));
  for (const BackendEntry& entry : backends())
    if (entry.name == name && !entry.serves({}) && entry.serves({DeviceType::cuda, 0}))
      return {DeviceType::cuda, {}};
  return {};
}

DevicePlacement::DevicePlacement(const DeviceRequest& request, const BackendEntry& backend)
    : request_(request) {
  if (request.type == DeviceType::cpu || backend.device_count == nullptr) return;
  count_ = std::max(backend.device_count(), 1);
  if (request.index && *request.index >= count_)
    throw Failure(Exit::unavailable,
                  fmt::format("--device {}: this machine has {} such device{}", to_string(request),
                              count_, count_ == 1 ? "" : "s"));
}

Device DevicePlacement::of(int local_rank) const noexcept {
  if (request_.type == DeviceType::cpu) return {};
  return {request_.type, request_.index.value_or(std::max(local_rank, 0) % count_)};
}

}  // namespace tutti::tool
