#include "group/call.hpp"

#include <functional>
#include <new>

#include "group/core.hpp"
#include "values/described.hpp"
#include "values/fail.hpp"

namespace tutti::internal {
namespace {

bool lies_in(const ConstTensorView& part, const TensorView& whole) {
  const auto* begin = static_cast<const std::byte*>(whole.data);
  const auto* data = static_cast<const std::byte*>(part.data);
  const std::less<> before;  // std::less orders any two addresses.
  return part.bytes() == 0 || (!before(data, begin) && before(data, begin + whole.bytes()));
}

/// Copies of the host arrays of a host_call(), in the group's memory.
struct Staging {
  Tensor out{};
  Tensor in{};  // Empty if the call's `in` is part of its `out`.
  TensorView host{};

  /// Replaces the host arrays of `op` with arrays on the group's device, and copies the input
  /// there.
  void enter(ProcessGroup& group, Op& op, Stream stream) {
    check_host_may_wait(group, stream);
    auto& memory = group.memory();
    host = op.out;
    const auto from = op.in;
    out = Tensor(memory, host.shape, host.dtype, stream);
    op.out = out;
    op.in.device = memory.device();
    if (lies_in(from, host)) {
      const auto at = from.bytes() == 0 ? 0
                                        : static_cast<const std::byte*>(from.data) -
                                              static_cast<const std::byte*>(host.data);
      op.in.data = static_cast<std::byte*>(out.data()) + at;
    } else {
      in = Tensor(memory, from.shape, from.dtype, stream);
      op.in.data = in.data();
    }
    // Only the root of a broadcast has an input. No other operation with a root comes here.
    if (from.bytes() != 0 && (op.root < 0 || op.root == group.rank()))
      memory.copy(const_cast<void*>(op.in.data), from.data, from.bytes(), stream);
  }
};

}  // namespace

void call(ProcessGroup& group, Op op, const CallOptions& options, Prepare prepare,
          std::string_view caller) {
  (void)Core::of(group).issue(op, options, Core::Wait::stream, prepare, caller);
}

void call(ProcessGroup& group, Op op, const CallOptions& options, Prepare prepare,
          std::string_view caller, Work* work) {
  if (work == nullptr) return call(group, op, options, prepare, caller);
  auto& core = Core::of(group);
  if (core.collects_here())
    failf(Errc::invalid_argument,
          "{}_async: group '{}' is collecting calls for a Coalesce, which would outlive the "
          "result; call launch() first",
          caller, group.name());
  *work = core.issue(op, options, Core::Wait::nothing, prepare, caller);
}

void host_call(ProcessGroup& group, Op op, const CallOptions& options, Prepare prepare,
               std::string_view caller) {
  if (on_host(group))
    return Core::of(group).issue(op, options, Core::Wait::host, prepare, caller).wait();
  Staging staging;
  const auto enter = [&](Op& mine) {
    if (prepare) prepare(mine);
    staging.enter(group, mine, options.stream);
  };
  Core::of(group).issue(op, options, Core::Wait::host, enter, caller).wait();
  const auto& host = staging.host;
  if (host.bytes() != 0)
    group.memory().copy(host.data, staging.out.data(), host.bytes(), options.stream);
}

void end_calls(ProcessGroup* group) {
  const Error error = [] {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      return out_of_memory();
    } catch (const Error& thrown) {
      // An error of a call has the place of the call, and the peers have an error too.
      if (thrown.code() != Errc::resource_exhausted || !thrown.where().group.empty()) throw;
      return thrown;
    }
  }();
  if (group != nullptr) Core::of(*group).break_with(error, false);
  throw Error(error);
}

Memory& staging_memory(ProcessGroup& group) {
  return Core::of(group).staging_memory();
}

void check_host_may_wait(ProcessGroup& group, Stream stream) {
  (void)Tensor(staging_memory(group), Shape{0}, DType::u8, stream);
}

}  // namespace tutti::internal
