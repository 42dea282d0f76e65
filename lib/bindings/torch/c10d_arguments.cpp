// The arguments of the backend's calls: checks, and what they are for tutti.

#include <cstdint>
#include <vector>

#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "torch/c10d_class.hpp"

namespace tutti::c10d_door {
namespace {

ReduceOp to_reduce_op(const ::c10d::ReduceOp& op) {
  using Kind = ::c10d::ReduceOp;
  switch (op.op_) {
    case Kind::SUM:
      return ReduceOp::sum;
    case Kind::AVG:
      return ReduceOp::avg;
    case Kind::PRODUCT:
      return ReduceOp::prod;
    case Kind::MIN:
      return ReduceOp::min;
    case Kind::MAX:
      return ReduceOp::max;
    case Kind::BAND:
      return ReduceOp::band;
    case Kind::BOR:
      return ReduceOp::bor;
    case Kind::BXOR:
      return ReduceOp::bxor;
    case Kind::PREMUL_SUM: {
      // From torch 2.13 on an alias of PreMulSumSupplement.
      const auto* factor = dynamic_cast<::c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK_VALUE(factor != nullptr, "tutti: PREMUL_SUM without a factor");
      return ReduceOp::premul(factor->tensor_factor.defined() ? factor->tensor_factor.item<double>()
                                                              : factor->double_factor);
    }
    default:
      C10_THROW_ERROR(ValueError, "tutti: unknown ReduceOp");
  }
}

}  // namespace

const at::Tensor& only(const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "tutti: ", tensors.size(),
                    " tensors in a list that requires a single-element tensor list");
  return tensors[0];
}

ReduceOp BackendOverTutti::reduce_op(const at::Tensor& tensor, const ::c10d::ReduceOp& op) {
  TORCH_CHECK_VALUE(!tensor.is_complex() || ::c10d::isComplexViewAsRealAllowed(op),
                    "tutti: all_reduce does not support this ReduceOp on complex tensors");
  return to_reduce_op(op);
}

std::vector<std::int64_t> BackendOverTutti::elements_of(const std::vector<std::int64_t>& rows,
                                                        const at::Tensor& tensor) const {
  const auto units = units_of(tensor);
  if (rows.empty())
    return std::vector<std::int64_t>(static_cast<std::size_t>(size_),
                                     tensor.numel() / size_ * units);
  const auto row = tensor.size(0) == 0 ? 0 : tensor.numel() / tensor.size(0) * units;
  auto counts = rows;
  for (auto& count : counts) count *= row;
  return counts;
}

void BackendOverTutti::check_list(const std::vector<Tensors>& lists, const at::Tensor& one,
                                  bool equal) const {
  TORCH_CHECK_VALUE(lists.size() == 1, "tutti: ", lists.size(),
                    " lists of tensors where the call requires a single-element list");
  TORCH_CHECK_VALUE(lists[0].size() == static_cast<std::size_t>(size_), "tutti: ", lists[0].size(),
                    " tensors in a list: Incorrect list size, should be ", size_);
  for (const auto& tensor : lists[0]) {
    TORCH_CHECK_VALUE(tensor.scalar_type() == one.scalar_type(),
                      "tutti: invalid tensor type: ", tensor.scalar_type(), " in the list, and ",
                      one.scalar_type());
    TORCH_CHECK_VALUE(!equal || tensor.numel() == one.numel(),
                      "tutti: invalid tensor size: ", tensor.numel(), " elements in the list, and ",
                      one.numel());
  }
}

bool BackendOverTutti::check_root(std::int64_t root, const std::vector<Tensors>& lists,
                                  const at::Tensor& one) const {
  TORCH_CHECK_VALUE(root >= 0 && root < size_, "tutti: invalid root rank: ", root,
                    "; ranks are 0 to ", size_ - 1);
  if (rank_ == root)
    check_list(lists, one, true);
  else
    TORCH_CHECK_VALUE(lists.empty(), "tutti: rank ", rank_, " passed a list, but the root is ",
                      root);
  return rank_ == root;
}

void BackendOverTutti::check_parts(const at::Tensor& whole, const at::Tensor& part,
                                   const char* of_whole, const char* of_part) const {
  TORCH_CHECK_VALUE(whole.scalar_type() == part.scalar_type(), "tutti: the ", of_whole,
                    " has dtype ", whole.scalar_type(), "; it must have the same type as the ",
                    of_part, ", ", part.scalar_type());
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * size_, "tutti: the ", of_whole, " has ",
                    whole.numel(), " elements; its size must be equal to ", size_,
                    " (the world size) times that of the ", of_part, ", ", part.numel());
}

void BackendOverTutti::check_pairs(const Tensors& outputs, const Tensors& inputs) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "tutti: ", outputs.size(), " outputs and ",
                    inputs.size(), " inputs; they must be as many");
}

}  // namespace tutti::c10d_door
