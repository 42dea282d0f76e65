#pragma once

#include <tutti/maybe_owned.hpp>
#include <tutti/process_group.hpp>

// The differentiable reduction to all ranks; autograd.hpp says what holds for all functions.

namespace tutti {
namespace [[gnu::visibility("default")]] autograd {

/// sum, avg, premul_sum; min and max, whose gradient ranks that tie share equally; product, also
/// where factors are zero. NaN: all ranks that hold one tie. On the wire: one all_reduce each way;
/// for min and max one of i32 more, for product an all_gather instead of the forward's.
struct AllReduceContext {
  ReduceOp op{};
  Tensor weights{};  ///< min, max, product: d out / d in, [...]; otherwise empty.
  Shape shape{};
  DType dtype = DType::f32;
};
struct AllReduced {
  MaybeOwned out;
  AllReduceContext context;
};
AllReduced all_reduce(ProcessGroup& group, const ConstTensorView& in, ReduceOp op = ReduceOp::sum,
                      const CallOptions& options = {});
MaybeOwned all_reduce_vjp(ProcessGroup& group, const AllReduceContext& context,
                          const ConstTensorView& grad_out, const CallOptions& options = {});

/// Of each element, the product over all other ranks (1 in a group of one): the derivative of
/// all_reduce(product), differentiable in turn. On the wire: an all_gather each way.
struct ProductContext {
  Tensor all{};  ///< [W, elements]: what every rank had; empty in a group of one.
  Shape shape{};
  DType dtype = DType::f32;
};
struct ProductOfOthers {
  MaybeOwned out;
  ProductContext context;
};
ProductOfOthers product_of_others(ProcessGroup& group, const ConstTensorView& in,
                                  const CallOptions& options = {});
MaybeOwned product_of_others_vjp(ProcessGroup& group, const ProductContext& context,
                                 const ConstTensorView& grad_out, const CallOptions& options = {});

}  // namespace autograd
}  // namespace tutti
