#pragma once

#include <string_view>

#include <tutti/process_group.hpp>

#include "group/prepare.hpp"

// Entry points of the front for the layers above it: gathers, gradients, sync and losses.

namespace tutti::internal {

/// Issues one operation like the blocking form of its verb. `op` has its kind, the dtype in its
/// arrays, and, where the operation has them, root, peer, tag and reduce; `prepare` may set the
/// rest.
///
/// `caller`: the public function that errors of `prepare` name; if empty, they name the operation.
void call(ProcessGroup& group, Op op, const CallOptions& options, Prepare prepare = {},
          std::string_view caller = {});
/// Issues the operation like the async form of its verb and stores the Work in `*work`. If `work`
/// is null, does the same as the function above. @throws Error invalid_argument while a Coalesce
/// collects this thread's calls.
void call(ProcessGroup& group, Op op, const CallOptions& options, Prepare prepare,
          std::string_view caller, Work* work);
/// call() for arrays in host memory, for a group on any device; `op.in` may be part of `op.out`. On
/// a device the arrays are copied through the group's memory, and the host waits until the call has
/// ended. `prepare` sets host arrays.
[[gnu::visibility("default")]] void host_call(ProcessGroup& group, Op op,
                                              const CallOptions& options, Prepare prepare = {},
                                              std::string_view caller = {});

/// Rethrows the exception of a function that makes calls of the group and needs memory outside of
/// them; for the handler around its body. If the exception is lack of memory of which no call has
/// told the peers, they may wait for calls that this rank will not make: breaks the group. Throws
/// Error resource_exhausted instead of std::bad_alloc. A null group: a single process.
[[gnu::visibility("default")]] [[noreturn]] void end_calls(ProcessGroup* group);
[[noreturn]] inline void end_calls(ProcessGroup& group) {
  end_calls(&group);
}

inline bool on_host(ProcessGroup& group) {
  return group.memory().device().type == DeviceType::cpu;
}

/// Host memory for staging copies, pinned on CUDA.
[[gnu::visibility("default")]] Memory& staging_memory(ProcessGroup& group);
/// @throws Error unsupported for a captured stream, on which the host cannot wait.
[[gnu::visibility("default")]] void check_host_may_wait(ProcessGroup& group, Stream stream);

}  // namespace tutti::internal
