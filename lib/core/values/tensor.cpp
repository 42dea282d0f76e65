#include <tutti/tensor.hpp>

#include <limits>

#include "values/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {

void detail::check_view(std::size_t count, const Shape& shape) {
  if (static_cast<std::uint64_t>(count) != static_cast<std::uint64_t>(shape.numel()))
    internal::failf(Errc::invalid_argument, "view: there are {} elements, but the shape {} has {}",
                    count, to_string(shape), shape.numel());
}

std::size_t detail::count_of(DType asked, DType dtype, const Shape& shape, Device device) {
  if (asked != dtype)
    internal::failf(Errc::invalid_argument,
                    "values: the array has dtype {}, not {}; call values() with the array's type",
                    name_of(dtype), name_of(asked));
  if (device.type != DeviceType::cpu)
    internal::failf(Errc::invalid_argument,
                    "values: the array is on {}, not cpu; copy it to host memory first",
                    to_string(device));
  return static_cast<std::size_t>(shape.numel());
}

Tensor::Tensor(Memory& memory, const Shape& shape, DType dtype, Stream stream)
    : shape_(shape), dtype_(dtype), device_(memory.device()) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  if (shape.numel() > std::numeric_limits<std::int64_t>::max() / size)
    internal::failf(Errc::count_overflow, "tensor {} {}: {} elements x {} bytes exceed 2^63 - 1",
                    name_of(dtype), to_string(shape), shape.numel(), size);
  const std::size_t bytes = view().bytes();
  buffer_ = {memory.allocate(bytes, stream), Release{&memory, bytes, stream, memory.lifetime()}};
}

Tensor::Tensor(const ConstTensorView& from, Memory& memory, Stream stream)
    : Tensor(memory, from.shape, from.dtype, stream) {
  if (from.device.type != DeviceType::cpu && from.device != device_)
    internal::failf(Errc::invalid_argument, "tensor: the array is on {}, the memory on {}",
                    to_string(from.device), to_string(device_));
  if (bytes() != 0) memory.copy(data(), from.data, bytes(), stream);
}

}  // namespace tutti
