#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <tutti/tensor.hpp>

namespace tutti::c10d_door {

using Tensors = std::vector<at::Tensor>;

/// The access of a call to a tensor.
enum class Use { reads, writes };

/// The tensors of one call, all on one device. Views live as long as this object. A tensor that is
/// not contiguous, and a list of tensors, travel through a copy, in the order of the current stream
/// of the device.
class Arrays {
 public:
  explicit Arrays(const c10::Device& device) : device_(device) {}

  /// A view [numel] for a call that moves elements. A dtype that the library lacks travels as
  /// bytes. @throws c10::ValueError for a tensor that is sparse or on another device.
  TensorView moved(const at::Tensor& tensor, Use use);
  /// A view [numel] for a call that reduces. @throws c10::NotImplementedError also for a dtype that
  /// the library lacks.
  TensorView reduced(const at::Tensor& tensor, Use use);
  /// A view of all elements of `tensors`, one tensor behind the other; likewise.
  TensorView joined(const Tensors& tensors, Use use);

  /// After the call: copies into the tensors that were written through a copy.
  void copy_back();
  bool copies_back() const noexcept { return !back_.empty(); }
  /// Gives up the tensors of a device, whose memory is used again after the work on `stream`.
  void release(const c10::Stream& stream);

 private:
  void check(const at::Tensor& tensor) const;
  TensorView flat_view(const at::Tensor& tensor) const;

  c10::Device device_;
  std::vector<at::Tensor> kept_;
  std::vector<std::pair<at::Tensor, at::Tensor>> back_;  // To, from.
};

/// The memory of a tensor on a device is used again after the work on `stream`.
void record_stream(const at::Tensor& tensor, const c10::Stream& stream);
/// The lengths of the views of `tensors`, as Arrays::moved() counts them.
std::vector<std::int64_t> lengths(const Tensors& tensors);
/// The elements of a view for each element of a tensor of this dtype: more than 1 if it travels as
/// bytes.
std::int64_t units_of(const at::Tensor& tensor);

}  // namespace tutti::c10d_door
