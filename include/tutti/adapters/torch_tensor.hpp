#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/GradMode.h>

#include <tutti/adapters/torch_types.hpp>
#include <tutti/error.hpp>
#include <tutti/maybe_owned.hpp>
#include <tutti/memory.hpp>
#include <tutti/tensor.hpp>

// Tensors of LibTorch as views, and arrays of this library as tensors. What has no view is an Error
// invalid_argument that says why.

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
  if (x.is_neg() || x.is_conj()) refuse("the tensor waits for resolve_neg() or resolve_conj()");
  if (!x.is_contiguous())
    refuse("sizes " + text_of(x.sizes()) + " with strides " + text_of(x.strides()) +
           " are not contiguous: use libtorch::Contiguous or contiguous()");
}

inline TensorView view_of(const at::Tensor& x, void* data) {
  return {data, from_torch(x.scalar_type()),
          Shape(std::span<const std::int64_t>(x.sizes().data(), x.sizes().size())),
          from_torch(x.device())};
}

// Reading makes no copy of what is copied on write; before torch 2.1 nothing was.
template <typename X>
void* readable(const X& x) {
  if constexpr (requires { x.const_data_ptr(); }) return const_cast<void*>(x.const_data_ptr());
  return x.data_ptr();
}
}  // namespace detail

/// To be read. Refused unless contiguous; x outlives it.
inline ConstTensorView view(const at::Tensor& x) {
  detail::check_view(x);
  return detail::view_of(x, detail::readable(x));
}
ConstTensorView view(at::Tensor&& x) = delete;

/// To be written to, as an in-place operation of torch: autograd's check of saved tensors notices,
/// and what requires grad is refused while gradients are recorded.
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

/// x to be read: x itself if it is contiguous, a copy that is. Outlives the call it is passed to.
class Contiguous {
 public:
  explicit Contiguous(const at::Tensor& x) : tensor_(x.resolve_neg().contiguous()) {}
  operator ConstTensorView() const& { return view(tensor_); }
  operator ConstTensorView() && = delete;

 private:
  at::Tensor tensor_;
};

/// Nothing is copied: the tensor holds the array, whose Memory has to live as long.
inline at::Tensor to_torch(Tensor&& array) {
  const auto owner = std::make_shared<Tensor>(std::move(array));
  const auto dims = owner->shape().dims();
  return at::from_blob(
      owner->data(), at::IntArrayRef(dims.data(), dims.size()), [owner](void*) {},
      at::TensorOptions(to_torch(owner->dtype())).device(to_torch(owner->device())));
}
/// A MaybeOwned that is the caller's input is copied to `memory`.
inline at::Tensor to_torch(MaybeOwned&& value, Memory& memory = host_memory()) {
  return to_torch(std::move(value).take(memory));
}

/// Host memory of torch's allocator: results that are made in it count as torch's.
class AllocatorMemory final : public Memory {
 public:
  explicit AllocatorMemory(c10::Allocator& allocator = *c10::GetAllocator(c10::kCPU))
      : allocator_(allocator) {
    if (allocator.raw_deleter() == nullptr)
      fail(Errc::unsupported, "torch: this allocator cannot give memory back by its address");
  }
  Device device() const noexcept override { return {}; }
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

/// Over the allocator that torch has for host memory at the first call. Lives for ever.
inline Memory& memory() {
  static Memory& always = *new AllocatorMemory;
  return always;
}

}  // namespace tutti::libtorch
