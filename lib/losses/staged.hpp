#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include <tutti/losses/ranking_loss.hpp>

namespace tutti::internal::losses {

/// The arrays of one call of a loss, where the host can read them: those on the group's device are
/// copied to pinned memory, behind what the call's stream has to do, and the gradient goes back to
/// where the logits are. The host waits for every copy. Ranks need not have their arrays alike.
///
/// The loss publishes an Error of this class to its peers, as it does for its other arguments,
/// except on a captured stream. The gradient's memory is allocated before the first message.
class Staged {
 public:
  /// `group` may be null: then everything is on the host.
  Staged(ProcessGroup* group, const CallOptions& call) noexcept
      : group_(group), stream_(call.stream) {}

  /// The same array on the host. @throws Error unsupported for one of another device, and while the
  /// stream is captured.
  ConstTensorView on_host(std::string_view what, const ConstTensorView& array);
  /// on_host(), and room for their gradient. Once, before the other arrays.
  ConstTensorView logits(const ConstTensorView& logits);
  tutti::losses::RankingBatch on_host(const tutti::losses::RankingBatch& batch);

  /// An array like the logits, where they are. `fill` writes it in host memory, where the logits
  /// are no more.
  Tensor gradient(const std::function<void(void* to)>& fill);

 private:
  ProcessGroup* group_;
  Stream stream_;
  std::vector<Tensor> copies_;  // On the host; that of the logits first.
  ConstTensorView logits_{};
  Tensor gradient_{};  // On a device.
};

}  // namespace tutti::internal::losses
