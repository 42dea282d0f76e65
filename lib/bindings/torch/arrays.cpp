#include "torch/arrays.hpp"

#include <array>
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <tutti/adapters/torch/detail/types.hpp>

namespace tutti::c10d_door {
namespace {

std::optional<DType> dtype_of_tensor(const at::Tensor& tensor) {
  static const auto table = [] {
    std::array<std::optional<DType>, 256> made{};
    for (int i = 0; i < dtype_count; ++i) {
      const auto dtype = static_cast<DType>(i);
      if (const auto type = libtorch::detail::scalar_type<c10::ScalarType>(dtype))
        made[static_cast<std::uint8_t>(*type)] = dtype;
    }
    return made;
  }();
  return table[static_cast<std::uint8_t>(tensor.scalar_type())];
}

}  // namespace

std::int64_t units_of(const at::Tensor& tensor) {
  return dtype_of_tensor(tensor) ? 1 : static_cast<std::int64_t>(tensor.element_size());
}

TensorView Arrays::flat_view(const at::Tensor& tensor) const {
  const auto dtype = dtype_of_tensor(tensor);
  const auto count = dtype ? tensor.numel() : static_cast<std::int64_t>(tensor.nbytes());
  return {tensor.data_ptr(), dtype.value_or(DType::u8), Shape::vector(count),
          libtorch::from_torch(device_)};
}

void Arrays::check(const at::Tensor& tensor) const {
  TORCH_CHECK_VALUE(tensor.defined(), "tutti: a tensor is undefined");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "tutti: the tensor has layout ",
                    tensor.layout(), "; this call takes dense tensors");
  TORCH_CHECK_VALUE(tensor.device() == device_, "tutti: the call has tensors on ", device_, " and ",
                    tensor.device(), "; they must be on one device");
}

TensorView Arrays::moved(const at::Tensor& tensor, Use use) {
  check(tensor);
  auto whole = tensor.contiguous();
  if (use == Use::writes && !whole.is_same(tensor)) back_.emplace_back(tensor, whole);
  const auto view = flat_view(whole);
  kept_.push_back(std::move(whole));
  return view;
}

TensorView Arrays::reduced(const at::Tensor& tensor, Use use) {
  if (!dtype_of_tensor(tensor))
    C10_THROW_ERROR(NotImplementedError,
                    c10::str("tutti: there is no reduction of ", tensor.scalar_type()));
  return moved(tensor, use);
}

TensorView Arrays::joined(const Tensors& tensors, Use use) {
  std::int64_t count = 0;
  for (const auto& tensor : tensors) {
    check(tensor);
    TORCH_CHECK_VALUE(tensor.scalar_type() == tensors[0].scalar_type(),
                      "tutti: the tensors of a list have the dtypes ", tensors[0].scalar_type(),
                      " and ", tensor.scalar_type(), "; they need one dtype");
    count += tensor.numel();
  }
  auto all = at::empty({count}, tensors.at(0).options());
  std::int64_t offset = 0;
  for (const auto& tensor : tensors) {
    auto part = all.narrow(0, offset, tensor.numel()).view(tensor.sizes());
    offset += tensor.numel();
    if (use == Use::writes)
      back_.emplace_back(tensor, std::move(part));
    else
      part.copy_(tensor);
  }
  const auto view = flat_view(all);
  kept_.push_back(std::move(all));
  return view;
}

void Arrays::copy_back() {
  const c10::NoGradGuard off;
  for (const auto& [to, from] : back_) to.copy_(from);
  back_.clear();
}

void Arrays::release(const c10::Stream& stream) {
  for (const auto& tensor : kept_) record_stream(tensor, stream);
  kept_.clear();
  back_.clear();
}

void record_stream(const at::Tensor& tensor, const c10::Stream& stream) {
  c10::impl::VirtualGuardImpl(stream.device_type())
      .recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

std::vector<std::int64_t> lengths(const Tensors& tensors) {
  std::vector<std::int64_t> counts;
  counts.reserve(tensors.size());
  for (const auto& tensor : tensors) counts.push_back(tensor.numel() * units_of(tensor));
  return counts;
}

}  // namespace tutti::c10d_door
