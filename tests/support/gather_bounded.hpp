#pragma once

#include "group/core.hpp"

namespace tutti::test {

/// Runs Operation::all_gather_bounded, which has no verb, as a blocking verb would.
inline void gather_bounded(ProcessGroup& group, const ConstTensorView& in, const TensorView& out,
                           const CallOptions& options = {}) {
  Op op{.kind = Operation::all_gather_bounded, .in = in, .out = out};
  (void)internal::Core::of(group).issue(op, options, internal::Core::Wait::stream);
}

inline Work gather_bounded_async(ProcessGroup& group, const ConstTensorView& in,
                                 const TensorView& out, const CallOptions& options = {}) {
  Op op{.kind = Operation::all_gather_bounded, .in = in, .out = out};
  return internal::Core::of(group).issue(op, options, internal::Core::Wait::nothing);
}

}  // namespace tutti::test
