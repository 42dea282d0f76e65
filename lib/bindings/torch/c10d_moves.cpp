// The collectives of the backend that reduce nothing.

#include <cstdint>
#include <vector>

#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "torch/c10d_class.hpp"

namespace tutti::c10d_door {
namespace {

void gather_together(Call& call, const Run& run, const Pairs& pairs) {
  call.work = launch_together(run, pairs, [&](auto& group, const auto& in, const auto& out) {
    return group.all_gather_async(in, out, {}, run.options);
  });
}

}  // namespace

WorkPointer BackendOverTutti::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) {
  const auto& tensor = only(tensors);
  return issue(OpType::BROADCAST, "tutti:broadcast", tensors, options,
               [&](Call& call, const Run& run) {
                 const auto data = call.arrays.moved(tensor, Use::writes);
                 const int root = static_cast<int>(options.rootRank);
                 TUTTI_RUN(broadcast, data, root);
               });
}

WorkPointer BackendOverTutti::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const ::c10d::AllgatherOptions& options) {
  const auto& input = only(inputs);
  check_list(outputs, input, false);
  return issue(OpType::ALLGATHER, "tutti:all_gather", inputs, options,
               [&](Call& call, const Run& run) {
                 call.outputs = outputs;
                 const auto in = call.arrays.moved(input, Use::reads);
                 const auto out = call.arrays.joined(outputs[0], Use::writes);
                 TUTTI_RUN(all_gather, in, out, lengths(outputs[0]));
               });
}

WorkPointer BackendOverTutti::_allgather_base(at::Tensor& output, at::Tensor& input,
                                              const ::c10d::AllgatherOptions& options) {
  check_parts(output, input, "output tensor", "input tensor");
  return issue(OpType::_ALLGATHER_BASE, "tutti:all_gather", {input}, options,
               [&](Call& call, const Run& run) {
                 call.outputs = {{output}};
                 const auto in = call.arrays.moved(input, Use::reads);
                 const auto out = call.arrays.moved(output, Use::writes);
                 TUTTI_RUN(all_gather, in, out, {});
               });
}

WorkPointer BackendOverTutti::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                  const ::c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == static_cast<std::size_t>(size_), "tutti: ", outputs.size(),
                    " output lists; there must be one for each of the ", size_, " ranks");
  return issue(OpType::ALLGATHER_COALESCED, "tutti:all_gather", inputs, options,
               [&](Call& call, const Run& run) {
                 call.outputs = outputs;
                 Pairs pairs;
                 for (std::size_t i = 0; i < inputs.size(); ++i) {
                   Tensors of_ranks;
                   for (const auto& list : outputs) of_ranks.push_back(list.at(i));
                   check_list({of_ranks}, inputs[i], true);
                   pairs.emplace_back(call.arrays.moved(inputs[i], Use::reads),
                                      call.arrays.joined(of_ranks, Use::writes));
                 }
                 gather_together(call, run, pairs);
               });
}

WorkPointer BackendOverTutti::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& options) {
  check_pairs(outputs, inputs);
  return issue(OpType::COALESCED, "tutti:all_gather", inputs, options,
               [&](Call& call, const Run& run) {
                 call.outputs = {outputs};
                 Pairs pairs;
                 for (std::size_t i = 0; i < inputs.size(); ++i)
                   pairs.emplace_back(call.arrays.moved(inputs[i], Use::reads),
                                      call.arrays.moved(outputs[i], Use::writes));
                 gather_together(call, run, pairs);
               });
}

WorkPointer BackendOverTutti::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                     const ::c10d::GatherOptions& options) {
  const auto& input = only(inputs);
  const bool is_root = check_root(options.rootRank, outputs, input);
  return issue(OpType::GATHER, "tutti:gather", inputs, options, [&](Call& call, const Run& run) {
    call.outputs = is_root ? outputs : std::vector<Tensors>{{}};
    const auto in = call.arrays.moved(input, Use::reads);
    const auto out = is_root ? call.arrays.joined(outputs[0], Use::writes) : TensorView();
    TUTTI_RUN(gather, in, out, static_cast<int>(options.rootRank), {});
  });
}

WorkPointer BackendOverTutti::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                 const ::c10d::GatherOptions& options) {
  const bool is_root = rank_ == options.rootRank;
  if (is_root) check_parts(output, input, "output tensor", "input tensor");
  return issue(OpType::GATHER, "tutti:gather", {input}, options, [&](Call& call, const Run& run) {
    call.outputs = {is_root ? Tensors{output} : Tensors{}};
    const auto in = call.arrays.moved(input, Use::reads);
    const auto out = is_root ? call.arrays.moved(output, Use::writes) : TensorView();
    TUTTI_RUN(gather, in, out, static_cast<int>(options.rootRank), {});
  });
}

WorkPointer BackendOverTutti::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                      const ::c10d::ScatterOptions& options) {
  const auto& output = only(outputs);
  const bool is_root = check_root(options.rootRank, inputs, output);
  return issue(OpType::SCATTER, "tutti:scatter", outputs, options, [&](Call& call, const Run& run) {
    const auto in = is_root ? call.arrays.joined(inputs[0], Use::reads) : TensorView();
    const auto out = call.arrays.moved(output, Use::writes);
    TUTTI_RUN(scatter, in, out, static_cast<int>(options.rootRank), {});
  });
}

WorkPointer BackendOverTutti::alltoall_base(at::Tensor& output, at::Tensor& input,
                                            std::vector<std::int64_t>& output_rows,
                                            std::vector<std::int64_t>& input_rows,
                                            const ::c10d::AllToAllOptions& options) {
  TORCH_CHECK_VALUE(input.scalar_type() == output.scalar_type(), "tutti: the input has dtype ",
                    input.scalar_type(), " and the output ", output.scalar_type());
  ::c10d::checkSplitSizes(input_rows, input, size_);
  ::c10d::checkSplitSizes(output_rows, output, size_);
  return issue(OpType::ALLTOALL_BASE, "tutti:all_to_all", {input}, options,
               [&](Call& call, const Run& run) {
                 call.outputs = {{output}};
                 const auto send = elements_of(input_rows, input);
                 const auto receive = elements_of(output_rows, output);
                 const auto in = call.arrays.moved(input, Use::reads);
                 const auto out = call.arrays.moved(output, Use::writes);
                 TUTTI_RUN(all_to_all, in, out, send, receive);
               });
}

WorkPointer BackendOverTutti::alltoall(Tensors& outputs, Tensors& inputs,
                                       const ::c10d::AllToAllOptions& options) {
  const auto ranks = static_cast<std::size_t>(size_);
  TORCH_CHECK_VALUE(outputs.size() == ranks && inputs.size() == ranks, "tutti: ", inputs.size(),
                    " inputs and ", outputs.size(), " outputs; there must be one for each of the ",
                    size_, " ranks");
  return issue(OpType::ALLTOALL, "tutti:all_to_all", inputs, options,
               [&](Call& call, const Run& run) {
                 call.outputs = {outputs};
                 const auto in = call.arrays.joined(inputs, Use::reads);
                 const auto out = call.arrays.joined(outputs, Use::writes);
                 TUTTI_RUN(all_to_all, in, out, lengths(inputs), lengths(outputs));
               });
}

}  // namespace tutti::c10d_door
