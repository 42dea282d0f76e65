#pragma once

#include <new>
#include <optional>

#include "group/call.hpp"

namespace tutti::internal {

/// Refuses the call that the others make, with `why`, and throws it.
[[noreturn]] inline void refuse_call(ProcessGroup& group, const Op& op, const Error& why,
                                     const CallOptions& options) {
  call(group, op, options, [&](Op&) { throw Error(why); });
  throw Error(why);
}

/// make(), which checks what only this rank has and makes its results. When it fails, `op` is
/// refused.
template <typename Make>
void make_or_refuse(ProcessGroup& group, const Op& op, const CallOptions& options,
                    const Make& make) {
  try {
    make();
  } catch (const Error& error) {
    refuse_call(group, op, error, options);
  }
}

/// What a check throws.
template <typename Check>
std::optional<Error> problem_of(const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(Errc::resource_exhausted, "this rank has no memory for the call");
  }
  return std::nullopt;
}

}  // namespace tutti::internal
