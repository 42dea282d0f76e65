#pragma once

#include <tutti/losses/loss.hpp>
#include <tutti/process_group.hpp>

namespace tutti::test {

/// Calls `loss` over the group, or as one process if `group` is null.
template <typename Loss, typename... Args>
losses::LossResult call_loss(Loss&& loss, ProcessGroup* group, const Args&... args) {
  return group == nullptr ? loss(args...) : loss(*group, args...);
}

}  // namespace tutti::test
