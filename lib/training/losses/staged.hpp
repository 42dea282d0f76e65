#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include <tutti/losses/ranking_loss.hpp>

namespace tutti::internal::losses {

/// Makes the arrays of one call readable by the host: copies arrays on the group's device to pinned
/// memory in the order of the call's stream, and copies the gradient back to the device of the
/// logits. The host waits for every copy. Ranks may hold their arrays on different devices.
///
/// The loss publishes an Error that this class throws to its peers, as it does for errors in other
/// arguments, except on a captured stream. The gradient's memory is allocated before the first
/// message.
class Staged {
 public:
  /// A null group requires that all arrays are on the host.
  Staged(ProcessGroup* group, const CallOptions& options) noexcept
      : group_(group), stream_(options.stream) {}

  /// Returns the array in host memory; an array on the group's device is copied. @throws Error
  /// unsupported if it is on any other device, or if it must be copied while the stream is
  /// captured.
  ConstTensorView on_host(std::string_view what, const ConstTensorView& array);
  /// Calls on_host() for the logits, and allocates their gradient. Call it once, before other
  /// arrays. `what`: their name in errors.
  ConstTensorView logits(const ConstTensorView& logits, std::string_view what = "logits");
  /// True if the logits are on the host.
  bool is_host() const noexcept { return logits_.device.type == DeviceType::cpu; }
  tutti::losses::Batch on_host(const tutti::losses::Batch& batch);

  /// Returns an array with the shape, dtype and device of the logits. `fill` writes the content to
  /// host memory, which may be the memory of the staged logits.
  Tensor gradient(const std::function<void(void* to)>& fill);

 private:
  ProcessGroup* group_;
  Stream stream_;
  std::vector<Tensor> copies_;  // Host copies. If the logits are on a device, the first is theirs.
  ConstTensorView logits_{};
  Tensor gradient_{};  // The gradient, if the logits are on a device.
};

}  // namespace tutti::internal::losses
