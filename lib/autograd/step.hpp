#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/autograd.hpp>

#include "group/call.hpp"

namespace tutti::internal {

using autograd::Differentiable;
struct Step;

/// A collective to be applied to gradients of one shape and dtype.
struct Transpose {
  int rank, size;               ///< Of the forward's group.
  std::string_view function;    ///< The forward whose transpose it is, for errors.
  std::string_view collective;  ///< The forward that it is.
  Shape from, to;               ///< Of the forward's value, and of its input.
  DType dtype;
  Memory* memory;  ///< Of results; null: the group's.
  std::function<Differentiable(const Step& step, const ConstTensorView& gradient)> run;
};

/// One call of a differentiable collective, forward or backward. The checks throw an Error of this
/// function and group, with the numbers.
struct Step {
  ProcessGroup& group;
  std::string_view function;  ///< The forward, also in its backward.
  const CallOptions& options;
  Memory* memory = nullptr;
  const Transpose* transpose = nullptr;  ///< Null: this is a forward.

  /// The input, where this rank may pass none: in a backward it is known.
  const Shape& input_shape(const ConstTensorView& in) const noexcept {
    return transpose != nullptr ? transpose->from : in.shape;
  }
  DType input_dtype(const ConstTensorView& in) const noexcept {
    return transpose != nullptr ? transpose->dtype : in.dtype;
  }

  /// The dtype has gradients; backward: it is a gradient of the forward's value.
  void check_input(const ConstTensorView& in) const;
  void check_dtype(DType dtype) const;
  void check_op(ReduceOp op, std::initializer_list<ReduceOp::Kind> among) const;
  void check_linear(ReduceOp op) const;      ///< sum, avg, premul_sum.
  void check_all_reduce(ReduceOp op) const;  ///< These, min, max, product.
  void check_host() const;                   ///< The group's arrays can be read here.
  [[noreturn]] void refuse(Errc code, const std::string& message) const;
  std::string name() const;  ///< "autograd::reduce", "autograd::reduce (backward)".

  Tensor make(const Shape& shape, DType dtype) const;
  /// Of this shape in a forward; in a backward the result has the shape of the forward's input.
  Tensor make_result(const Shape& of_forward, DType dtype) const {
    return make(transpose != nullptr ? transpose->to : of_forward, dtype);
  }
  /// One call, whose `prepare` checks what only this rank has and makes the results.
  void call(const Op& op, Prepare prepare) const { internal::call(group, op, options, prepare); }
  /// The result that this step made of `in`. Its backward is function(step, gradient, saved...),
  /// which makes `collective`.
  template <auto function, typename... Saved>
  Differentiable result(std::string_view collective, const ConstTensorView& in, Tensor value,
                        const Saved&... saved) const {
    return with_backward(collective, in, std::move(value),
                         [saved...](const Step& step, const ConstTensorView& gradient) {
                           return Differentiable(function(step, gradient, saved...));
                         });
  }

 private:
  Differentiable with_backward(std::string_view collective, const ConstTensorView& in, Tensor value,
                               decltype(Transpose::run) run) const;
};

}  // namespace tutti::internal
