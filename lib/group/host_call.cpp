#include "group/host_call.hpp"

#include <functional>
#include <string>

#include "group/core.hpp"
#include "group/refuse.hpp"

namespace tutti::internal {
namespace {

bool lies_in(const ConstTensorView& part, const TensorView& whole) {
  const auto* begin = static_cast<const std::byte*>(whole.data);
  const auto* data = static_cast<const std::byte*>(part.data);
  const std::less<> before;  // Of any two addresses.
  return part.bytes() == 0 || (!before(data, begin) && before(data, begin + whole.bytes()));
}

}  // namespace

Memory& staging_memory(ProcessGroup& group) noexcept {
  return Core::staging_memory(group);
}

void check_host_may_wait(ProcessGroup& group, Stream stream) {
  (void)Tensor(staging_memory(group), Shape{0}, DType::u8, stream);
}

void host_call(ProcessGroup& group, Op op, const CallOptions& options, std::string_view caller) {
  if (on_host(group)) return Core::call(group, op, options);
  auto& memory = group.memory();
  const auto stream = options.stream;
  const auto in = op.in;
  const auto host = op.out;
  Tensor staged;
  Tensor apart;
  const auto make = [&] {
    check_host_may_wait(group, stream);
    staged = Tensor(memory, host.shape, host.dtype, stream);
    op.out = staged;
    op.in.device = memory.device();
    if (lies_in(in, host)) {
      const auto at = in.bytes() == 0 ? 0
                                      : static_cast<const std::byte*>(in.data) -
                                            static_cast<const std::byte*>(host.data);
      op.in.data = static_cast<std::byte*>(staged.data()) + at;
    } else {
      apart = Tensor(memory, in.shape, in.dtype, stream);
      op.in.data = apart.data();
    }
    // What only root has is nowhere else.
    if (in.bytes() != 0 && (op.root < 0 || op.root == group.rank()))
      memory.copy(const_cast<void*>(op.in.data), in.data, in.bytes(), stream);
  };
  make_or_refuse(group, op, options, [&] {
    try {
      make();
    } catch (const Error& why) {
      if (caller.empty()) throw;
      throw Error(why.code(), why.message(),
                  {.group = group.name(), .operation = std::string(caller), .rank = group.rank()});
    }
  });
  Core::call(group, op, options);
  if (host.bytes() != 0) memory.copy(host.data, staged.data(), host.bytes(), stream);
}

}  // namespace tutti::internal
