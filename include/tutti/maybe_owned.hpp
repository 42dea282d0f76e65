#pragma once

#include <utility>

#include <tutti/tensor.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// An owned array, or a view of the caller's input if the function worked in place or there is no
/// group. The caller's input must outlive the view. Move-only.
class MaybeOwned {
 public:
  MaybeOwned() noexcept = default;
  MaybeOwned(Tensor&& own) noexcept : own_(std::move(own)), view_(std::as_const(own_).view()) {}
  explicit MaybeOwned(const ConstTensorView& input) noexcept : view_(input), is_input_(true) {}
  MaybeOwned(MaybeOwned&&) noexcept = default;
  MaybeOwned& operator=(MaybeOwned&&) noexcept = default;

  const ConstTensorView& view() const& noexcept { return view_; }
  void view() && = delete;
  operator const ConstTensorView&() const& noexcept { return view_; }
  operator ConstTensorView() && = delete;

  const void* data() const noexcept { return view_.data; }
  DType dtype() const noexcept { return view_.dtype; }
  const Shape& shape() const noexcept { return view_.shape; }
  std::size_t bytes() const noexcept { return view_.bytes(); }
  bool is_input() const noexcept { return is_input_; }  ///< It views the caller's input.
  /// The owned array, or a copy of the viewed input in `memory`.
  Tensor take(Memory& memory = host_memory()) &&;

 private:
  Tensor own_;
  ConstTensorView view_;
  bool is_input_ = false;
};

}  // namespace tutti
