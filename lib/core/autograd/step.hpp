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

/// The collective that a backward runs, for gradients of one shape and dtype.
struct Transpose {
  int rank, size;               ///< The rank in the forward's group, and that group's size.
  std::string_view function;    ///< Name of the forward, for errors.
  std::string_view collective;  ///< Name of this collective as a forward.
  Shape from, to;               ///< Shapes of the forward's value and input.
  DType dtype;
  Memory* memory;  ///< Of the forward's options.
  std::function<Differentiable(const Step& step, const ConstTensorView& gradient)> run;
};

/// One call of a differentiable collective, forward or backward. The checks throw Error; its text
/// names the function and the group.
struct Step {
  ProcessGroup& group;
  std::string_view function;  ///< Name of the forward, in its backward too.
  const CallOptions& options;
  const Transpose* transpose = nullptr;  ///< Null in a forward.

  /// The shape of the input. A backward knows it even if this rank passes no array.
  const Shape& input_shape(const ConstTensorView& in) const noexcept {
    return transpose != nullptr ? transpose->from : in.shape;
  }
  DType input_dtype(const ConstTensorView& in) const noexcept {
    return transpose != nullptr ? transpose->dtype : in.dtype;
  }
  /// The memory of results; null: the group's.
  Memory* memory() const noexcept {
    return options.memory != nullptr || transpose == nullptr ? options.memory : transpose->memory;
  }

  /// In a forward, checks that the dtype has gradients. In a backward, checks that `in` has the
  /// shape and dtype of the forward's value.
  void check_input(const ConstTensorView& in) const;
  void check_dtype(DType dtype) const;
  void check_op(ReduceOp op, std::initializer_list<ReduceOp::Kind> among) const;
  void check_linear(ReduceOp op) const;      ///< Accepts sum, avg, premul_sum.
  void check_all_reduce(ReduceOp op) const;  ///< Accepts these, min, max, prod.
  void check_host() const;                   ///< Requires arrays that the host can read.
  [[noreturn]] void refuse(Errc code, const std::string& message) const;
  std::string name() const;  ///< "autograd::reduce", "autograd::reduce (backward)".

  Tensor make(const Shape& shape, DType dtype) const;
  /// Makes a result of this shape; in a backward, of the shape of the forward's input.
  Tensor make_result(const Shape& of_forward, DType dtype) const {
    return make(transpose != nullptr ? transpose->to : of_forward, dtype);
  }
  /// Makes one call. `prepare` checks this rank's arguments and allocates the results.
  void call(const Op& op, Prepare prepare) const { internal::call(group, op, options, prepare); }
  /// Returns `value` with a backward that calls function(step, gradient, saved...). `collective`
  /// names the collective that `function` calls.
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
