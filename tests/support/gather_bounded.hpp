#pragma once

#include "group/call.hpp"

namespace tutti::test {

/// Operation::all_gather_bounded, which has no verb, as its blocking verb would make it.
inline void gather_bounded(ProcessGroup& group, const ConstTensorView& in, const TensorView& out,
                           const CallOptions& options = {}) {
  internal::call(group, {.kind = Operation::all_gather_bounded, .in = in, .out = out}, options);
}

inline Work gather_bounded_async(ProcessGroup& group, const ConstTensorView& in,
                                 const TensorView& out, const CallOptions& options = {}) {
  return internal::call_async(group, {.kind = Operation::all_gather_bounded, .in = in, .out = out},
                              options);
}

}  // namespace tutti::test
