#include "internal/host_call.hpp"

#include "internal/core.hpp"
#include "internal/refuse.hpp"

namespace tutti::internal {

void host_call(ProcessGroup& group, Op op, const CallOptions& options) {
  if (on_host(group)) return Core::call(group, op, options);
  auto& memory = group.memory();
  const auto stream = options.stream;
  const auto host = op.out;
  auto* const in_host = const_cast<void*>(op.in.data);
  const auto at = op.in.bytes() == 0
                      ? 0
                      : static_cast<std::byte*>(in_host) - static_cast<std::byte*>(host.data);
  Tensor staged;
  make_or_refuse(group, op, options, [&] {
    staged = Tensor(memory, host.shape, host.dtype, stream);
    op.out = staged;
    op.in.data = static_cast<std::byte*>(staged.data()) + at;
    op.in.device = memory.device();
    // What only root has is nowhere else.
    if (op.in.bytes() != 0 && (op.root < 0 || op.root == group.rank()))
      memory.copy(const_cast<void*>(op.in.data), in_host, op.in.bytes(), stream);
  });
  Core::call(group, op, options);
  if (host.bytes() != 0) memory.copy(host.data, staged.data(), host.bytes(), stream);
}

}  // namespace tutti::internal
