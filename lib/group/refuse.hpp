#pragma once

#include <new>
#include <optional>

#include <tutti/process_group.hpp>

namespace tutti::internal {

/// What this rank says when it cannot make the call that the others make: the call takes its
/// number, they are told why, and `why` is thrown. `op` needs its kind, and root, peer and tag
/// where it has them.
[[noreturn]] void refuse_call(ProcessGroup& group, const Op& op, const Error& why,
                              const CallOptions& options);

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
