#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <tutti/adapters/dlpack/types.hpp>
#include <tutti/tensor.hpp>

// Views of other frameworks' arrays, and DLPack arrays made from this library's. Nothing is copied
// unless a function says so. view() throws Error invalid_argument for an array that cannot have a
// view, and names the reason: more than 8 dimensions, strides that are not contiguous, several
// lanes, another dtype, device or ABI version, no data, misaligned data.

namespace tutti::dlpack {

namespace detail {
/// The shape of a contiguous array, in which dimensions of size 1 may have any stride. @throws
/// Error invalid_argument for other arrays.
inline Shape shape_of(const DLTensor& array) {
  const auto ndim = static_cast<std::size_t>(array.ndim);
  if (array.ndim < 0 || ndim > Shape::max_dims || (ndim != 0 && array.shape == nullptr))
    fail(Errc::invalid_argument, "dlpack: " + std::to_string(array.ndim) + " dimensions" +
                                     (array.shape == nullptr ? " and no shape" : "") +
                                     "; an array has a shape, whose length is 0 to " +
                                     std::to_string(Shape::max_dims));
  const Shape shape(std::span<const std::int64_t>(array.shape, ndim));
  if (array.strides == nullptr || shape.numel() == 0) return shape;
  std::int64_t expected = 1;
  for (std::size_t i = ndim; i-- > 0; expected *= array.shape[i])
    if (array.shape[i] != 1 && array.strides[i] != expected)
      fail(Errc::invalid_argument,
           "dlpack: dimension " + std::to_string(i) + " of " + to_string(shape) + " has stride " +
               std::to_string(array.strides[i]) + ", in a contiguous array it is " +
               std::to_string(expected) + ": make it contiguous first");
  return shape;
}

template <Managed M>
void check_version(const M& managed) {
  if constexpr (requires { managed.version.major; })
    if (managed.version.major != 1)
      fail(Errc::invalid_argument, "dlpack: the array has ABI version " +
                                       std::to_string(managed.version.major) +
                                       "; this adapter supports version 1");
}
}  // namespace detail

/// A view of a DLTensor, which must outlive it.
inline TensorView view(DLTensor& array) {
  const DType dtype = from_dlpack(array.dtype);
  const Shape shape = detail::shape_of(array);
  const Device device = from_dlpack(array.device);
  if (shape.numel() == 0) return {nullptr, dtype, shape, device};
  const auto address = reinterpret_cast<std::uintptr_t>(array.data) + array.byte_offset;
  if (array.data == nullptr || address % size_of(dtype) != 0)
    fail(Errc::invalid_argument, "dlpack: " + std::string(name_of(dtype)) + " " + to_string(shape) +
                                     (array.data == nullptr ? " has no data" : " is misaligned"));
  return {static_cast<std::byte*>(array.data) + array.byte_offset, dtype, shape, device};
}
/// A read-only view of a DLTensor.
inline ConstTensorView view(const DLTensor& array) {
  DLTensor same = array;
  return view(same);
}
/// A view of a DLManagedTensor or DLManagedTensorVersioned. A read-only array has no mutable view:
/// pass std::as_const(array).
template <Managed M>
TensorView view(M& managed) {
  detail::check_version(managed);
  if constexpr (requires { managed.flags; })
    if ((managed.flags & 1) != 0)  // DLPACK_FLAG_BITMASK_READ_ONLY
      fail(Errc::invalid_argument, "dlpack: the array is read-only");
  return view(managed.dl_tensor);
}
/// A read-only view of a DLManagedTensor or DLManagedTensorVersioned.
template <Managed M>
ConstTensorView view(const M& managed) {
  detail::check_version(managed);
  return view(managed.dl_tensor);
}

/// A DLTensor over the caller's memory, which has to outlive the Borrowed. Not copyable, because it
/// points to its own shape. DLTensor has no const: if the memory is read-only, the consumer must
/// not write.
class Borrowed {
 public:
  explicit Borrowed(const ConstTensorView& array) {
    std::int64_t stride = 1;
    for (std::size_t i = array.shape.ndim(); i-- > 0; stride *= shape_[i]) {
      shape_[i] = array.shape.dims()[i];
      strides_[i] = stride;
    }
    tensor_.data = array.shape.numel() == 0 ? nullptr : const_cast<void*>(array.data);
    tensor_.device = to_dlpack(array.device);
    tensor_.ndim = static_cast<int>(array.shape.ndim());
    tensor_.dtype = to_dlpack(array.dtype);
    tensor_.shape = shape_.data();
    tensor_.strides = strides_.data();
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  DLTensor& tensor() & noexcept { return tensor_; }  ///< Valid while this object lives.

 private:
  std::array<std::int64_t, Shape::max_dims> shape_{}, strides_{};
  DLTensor tensor_{};
};

/// Calls the deleter of a managed array, if it has one. For Owned.
struct Delete {
  template <Managed M>
  void operator()(M* managed) const noexcept {
    if (managed->deleter != nullptr) managed->deleter(managed);
  }
};
/// Owns an array and calls its deleter. Keeps a received array alive while its views are in use;
/// release() gives up the ownership, to hand the array to another framework.
template <Managed M = DLManagedTensor>
using Owned = std::unique_ptr<M, Delete>;

/// Passes ownership of an array to another framework. The deleter may run on any thread; the
/// array's Memory has to live until then. own<DLManagedTensorVersioned>(...) makes the newer type.
template <Managed M = DLManagedTensor>
Owned<M> own(Tensor&& array) {
  struct Holder {
    explicit Holder(Tensor&& given) : array(std::move(given)), borrowed(array.view()) {}
    Tensor array;
    Borrowed borrowed;
    M managed{};
  };
  auto* const holder = new Holder(std::move(array));
  M& managed = holder->managed;
  managed.dl_tensor = holder->borrowed.tensor();
  managed.manager_ctx = holder;
  managed.deleter = [](M* self) { delete static_cast<Holder*>(self->manager_ctx); };
  if constexpr (requires { managed.version.major; }) managed.version = {1, 0};
  return Owned<M>(&managed);
}

}  // namespace tutti::dlpack
