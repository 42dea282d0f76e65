#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/GradMode.h>

#include <tutti/adapters/torch/detail/device.hpp>
#include <tutti/adapters/torch/detail/types.hpp>
#include <tutti/error.hpp>
#include <tutti/memory.hpp>
#include <tutti/tensor.hpp>

// Views of LibTorch's tensors, and tensors made from this library's arrays. view() and
// mutable_view() throw Error invalid_argument with the reason if a tensor cannot have a view.

/// Tensors, gradients and modules of LibTorch.
namespace tutti::libtorch {

namespace detail {
inline std::string text_of(at::IntArrayRef numbers) {
  std::string text = "[";
  for (const auto n : numbers) text += (text.size() == 1 ? "" : ", ") + std::to_string(n);
  return text + "]";
}

inline void check_view(const at::Tensor& x) {
  const auto refuse = [](const std::string& why) { fail(Errc::invalid_argument, "torch: " + why); };
  if (!x.defined()) refuse("the tensor is not defined");
  if (x.layout() != at::kStrided || x.is_nested() || !x.has_storage())
    refuse("a sparse, nested or wrapped tensor has no view");
  if (x.is_neg() || x.is_conj())
    refuse(
        "the tensor has its negative or conjugate bit set; call resolve_neg() or resolve_conj() "
        "first");
  if (!x.is_contiguous())
    refuse("sizes " + text_of(x.sizes()) + " with strides " + text_of(x.strides()) +
           " are not contiguous: use libtorch::Contiguous or contiguous()");
}

inline TensorView view_of(const at::Tensor& x, void* data) {
  return {data, from_torch(x.scalar_type()),
          Shape(std::span<const std::int64_t>(x.sizes().data(), x.sizes().size())),
          from_torch(x.device())};
}

// const_data_ptr() does not materialize copy-on-write tensors. Versions before torch 2.1 have
// neither this function nor such tensors.
template <typename X>
void* readable(const X& x) {
  if constexpr (requires { x.const_data_ptr(); }) return const_cast<void*>(x.const_data_ptr());
  return x.data_ptr();
}
}  // namespace detail

/// A read-only view of `x`, which must outlive it. Refused unless `x` is contiguous.
inline ConstTensorView view(const at::Tensor& x) {
  detail::check_view(x);
  return detail::view_of(x, detail::readable(x));
}
ConstTensorView view(at::Tensor&& x) = delete;

/// A writable view, with the rules of torch's in-place operations: autograd detects writes to saved
/// tensors, and a tensor that requires grad is refused while gradients are recorded.
inline TensorView mutable_view(const at::Tensor& x) {
  detail::check_view(x);
  if (x.requires_grad() && c10::GradMode::is_enabled())
    fail(Errc::invalid_argument,
         "torch: autograd would not see a write to a tensor that requires grad: use a NoGradGuard");
  const TensorView view = detail::view_of(x, x.data_ptr());
  x.unsafeGetTensorImpl()->bump_version();
  return view;
}
TensorView mutable_view(at::Tensor&& x) = delete;

/// x itself if it is contiguous and its negative bit is not set, otherwise a contiguous copy. The
/// Contiguous must outlive the call to which it is passed.
class Contiguous {
 public:
  explicit Contiguous(const at::Tensor& x) : tensor_(x.resolve_neg().contiguous()) {}
  operator ConstTensorView() const& { return view(tensor_); }
  operator ConstTensorView() && = delete;

 private:
  at::Tensor tensor_;
};

/// Returns a tensor that owns the array; nothing is copied. The array's Memory must outlive the
/// tensor, unless it is memory().
inline at::Tensor to_torch(Tensor&& array) {
  const auto owner = std::make_shared<Tensor>(std::move(array));
  const auto dims = owner->shape().dims();
  const at::IntArrayRef sizes(dims.data(), dims.size());
  const c10::Device device = to_torch(owner->device());
  const at::TensorOptions options = at::TensorOptions(to_torch(owner->dtype())).device(device);
  if (!device.is_cpu())
    if (c10::DataPtr block = detail::device_memory(device).take(owner->data())) {
      at::Tensor result = at::empty({0}, options);
      result.unsafeGetTensorImpl()->set_storage_keep_dtype(
          c10::Storage(c10::Storage::use_byte_size_t(), owner->bytes(), std::move(block),
                       c10::GetAllocator(device.type()), true));
      result.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
      return result;
    }
  return detail::from_blob(owner->data(), sizes, options, [owner](void*) {});
}
/// Host memory of torch's allocator, so that torch accounts for the results.
class AllocatorMemory final : public Memory {
 public:
  explicit AllocatorMemory(c10::Allocator& allocator = *c10::GetAllocator(c10::kCPU))
      : allocator_(allocator) {
    if (allocator.raw_deleter() == nullptr)
      fail(Errc::unsupported,
           "torch: this allocator has no raw_deleter(), so it cannot free memory");
  }
  Device device() const noexcept override { return {}; }  ///< cpu
  void* allocate(std::size_t bytes, Stream) override {
    try {
      return allocator_.raw_allocate(std::max<std::size_t>(bytes, 1));
    } catch (const c10::Error& error) {
      fail(Errc::resource_exhausted, error.what_without_backtrace());
    }
  }
  void release(void* data, std::size_t, Stream) noexcept override {
    allocator_.raw_deallocate(data);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }

 private:
  c10::Allocator& allocator_;
};

/// Memory of torch's host allocator as of the first call. Never destroyed.
inline Memory& memory() {
  static Memory& always = *new AllocatorMemory;
  return always;
}
/// Memory of torch's allocator for `device`, for the results of calls whose stream is torch's
/// current stream of that device; allocate() refuses other streams. Never destroyed.
inline Memory& memory(const c10::Device& device) {
  return device.is_cpu() ? memory() : detail::device_memory(device);
}

}  // namespace tutti::libtorch
