// The reductions of the backend.

#include <cstdint>
#include <vector>

#include <tutti/adapters/torch/tensor.hpp>
#include <tutti/gather.hpp>

#include "torch/c10d_class.hpp"

namespace tutti::c10d_door {

WorkPointer BackendOverTutti::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) {
  const auto& tensor = only(tensors);
  if (tensor.is_sparse()) return allreduce_sparse(tensors, options);
  return issue(OpType::ALLREDUCE, "tutti:all_reduce", tensors, options,
               [&](Call& call, const Run& run) {
                 const auto op = reduce_op(tensor, options.reduceOp);
                 const auto data = call.arrays.reduced(tensor, Use::writes);
                 TUTTI_RUN(all_reduce, data, op);
               });
}

WorkPointer BackendOverTutti::allreduce_sparse(Tensors& tensors,
                                               const ::c10d::AllreduceOptions& options) {
  const auto& tensor = only(tensors);
  TORCH_CHECK_VALUE(options.reduceOp == ::c10d::ReduceOp::SUM,
                    "tutti: the only reduction of sparse tensors is SUM");
  if (!tensor.device().is_cpu())
    C10_THROW_ERROR(NotImplementedError,
                    c10::str("tutti: the sparse tensor is on ", tensor.device(),
                             "; sparse tensors are reduced on cpu"));
  return issue(
      OpType::_ALLREDUCE_SPARSE, "tutti:all_reduce", tensors, options, [&](Call&, const Run& run) {
        const auto local = tensor.coalesce();
        const auto indices = local.indices().t().contiguous();  // [rows, sparse dims]
        const auto values = local.values().contiguous();        // [rows, ...]
        const auto gather = [&](const at::Tensor& from) {
          return libtorch::to_torch(
              all_gather_rows(run.group(), libtorch::view(from), {}, run.options).data);
        };
        const auto sum =
            at::_sparse_coo_tensor_unsafe(gather(indices).t(), gather(values), tensor.sizes())
                .coalesce();
        tensor.copy_(sum);
      });
}

WorkPointer BackendOverTutti::allreduce_coalesced(
    Tensors& tensors, const ::c10d::AllreduceCoalescedOptions& options) {
  return issue(OpType::ALLREDUCE_COALESCED, "tutti:all_reduce", tensors, options,
               [&](Call& call, const Run& run) {
                 auto op = ReduceOp::sum;
                 Pairs pairs;
                 for (const auto& tensor : tensors) {
                   op = reduce_op(tensor, options.reduceOp);
                   pairs.emplace_back(TensorView(), call.arrays.reduced(tensor, Use::writes));
                 }
                 call.work = launch_together(run, pairs, [&](auto& group, auto&, const auto& data) {
                   return group.all_reduce_async(data, op, run.options);
                 });
               });
}

WorkPointer BackendOverTutti::reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) {
  const auto& tensor = only(tensors);
  return issue(OpType::REDUCE, "tutti:reduce", tensors, options, [&](Call& call, const Run& run) {
    const int root = static_cast<int>(options.rootRank);
    const auto op = reduce_op(tensor, options.reduceOp);
    const auto in = call.arrays.reduced(tensor, rank_ == root ? Use::writes : Use::reads);
    const auto out = rank_ == root ? in : TensorView();
    TUTTI_RUN(reduce, in, out, root, op);
  });
}

WorkPointer BackendOverTutti::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                             const ::c10d::ReduceScatterOptions& options) {
  const auto& output = only(outputs);
  check_list(inputs, output, false);
  return issue(OpType::REDUCE_SCATTER, "tutti:reduce_scatter", outputs, options,
               [&](Call& call, const Run& run) {
                 const auto op = reduce_op(output, options.reduceOp);
                 const auto out = call.arrays.reduced(output, Use::writes);
                 const auto in = call.arrays.joined(inputs[0], Use::reads);
                 TUTTI_RUN(reduce_scatter, in, out, lengths(inputs[0]), op);
               });
}

WorkPointer BackendOverTutti::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                   const ::c10d::ReduceScatterOptions& options) {
  check_parts(input, output, "input tensor", "output tensor");
  return issue(OpType::_REDUCE_SCATTER_BASE, "tutti:reduce_scatter", {output}, options,
               [&](Call& call, const Run& run) {
                 const auto op = reduce_op(output, options.reduceOp);
                 const auto in = call.arrays.reduced(input, Use::reads);
                 const auto out = call.arrays.reduced(output, Use::writes);
                 TUTTI_RUN(reduce_scatter, in, out, {}, op);
               });
}

WorkPointer BackendOverTutti::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const ::c10d::ReduceScatterOptions& options) {
  check_pairs(outputs, inputs);
  return issue(
      OpType::COALESCED, "tutti:reduce_scatter", outputs, options, [&](Call& call, const Run& run) {
        auto op = ReduceOp::sum;
        Pairs pairs;
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          op = reduce_op(outputs[i], options.reduceOp);
          pairs.emplace_back(call.arrays.reduced(inputs[i], Use::reads),
                             call.arrays.reduced(outputs[i], Use::writes));
        }
        call.work = launch_together(run, pairs, [&](auto& group, const auto& in, const auto& out) {
          return group.reduce_scatter_async(in, out, {}, op, run.options);
        });
      });
}

}  // namespace tutti::c10d_door
