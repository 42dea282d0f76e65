#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

#include <tutti/gather.hpp>

namespace tutti::internal {

/// What a function of autograd asks before it does anything. Where the answer is no it throws an
/// Error of this function and group, with the numbers.
class AutogradCheck {
 public:
  AutogradCheck(ProcessGroup& group, std::string_view function) noexcept
      : group_(group), function_(function) {}

  void dtype(DType dtype) const;                                            ///< Has a gradient.
  void op(ReduceOp op, std::initializer_list<ReduceOp::Kind> among) const;  ///< Has one here.
  void linear(ReduceOp op) const;               ///< sum, avg, premul_sum.
  void host() const;                            ///< The group's arrays can be read here.
  void array(const ConstTensorView& in) const;  ///< Not null, and on the group's device.
  /// In a group of one rank, where no call does it: the only root, rows of `in`.
  void root(int root) const;
  void layout(const ConstTensorView& in, const RowLayout& layout) const;
  /// It is the gradient of a forward's value of this shape.
  void gradient(const ConstTensorView& grad_out, const Shape& shape, DType dtype) const;
  [[noreturn]] void refuse(Errc code, const std::string& message) const;

 private:
  ProcessGroup& group_;
  std::string_view function_;
};

/// Where the results are made.
inline Memory& memory_of(ProcessGroup& group, const GatherOptions& options) {
  return options.memory != nullptr ? *options.memory : group.memory();
}

/// make(), which checks what only this rank has and makes its results. When that fails, the others
/// would wait: refuse() makes the call with an array that the group refuses, which tells them; or
/// refuse(error) does.
template <typename Make, typename Refuse>
void make_or_tell(const Make& make, const Refuse& refuse) {
  try {
    make();
  } catch (const Error& error) {
    try {
      if constexpr (std::invocable<Refuse, const Error&>)
        refuse(error);
      else
        refuse();
    } catch (const Error&) {  // The refusal; what happened is the other one.
    }
    throw Error(error);
  }
}

}  // namespace tutti::internal
