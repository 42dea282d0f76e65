#include "torch/c10d_backend.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/StringUtil.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <tutti/adapters/torch/detail/device.hpp>
#include <tutti/coalesce.hpp>
#include <tutti/process_group.hpp>

#include "torch/arrays.hpp"
#include "torch/c10d_work.hpp"
#include "torch/errors.hpp"
#include "torch/groups.hpp"

namespace tutti::c10d_door {
namespace {

using std::chrono::milliseconds;
using WorkPointer = c10::intrusive_ptr<::c10d::Work>;
using ::c10d::OpType;

struct NoOptions {  // Of send and recv.
  milliseconds timeout = ::c10d::kUnsetTimeout;
  bool asyncOp = true;
};

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
      const auto* factor = dynamic_cast<::c10d::PreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK_VALUE(factor != nullptr, "tutti: PREMUL_SUM without a factor");
      return ReduceOp::premul(factor->tensor_factor.defined() ? factor->tensor_factor.item<double>()
                                                              : factor->double_factor);
    }
    default:
      C10_THROW_ERROR(ValueError, "tutti: unknown ReduceOp");
  }
}

const at::Tensor& only(const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "tutti: ", tensors.size(),
                    " tensors in a list that requires a single-element tensor list");
  return tensors[0];
}

/// The group, the device and the options of a call that runs.
struct Run {
  Groups& groups;
  c10::Device device;
  CallOptions options;
  bool blocks;  ///< The caller waits at once, so the blocking verb may be used.

  /// Collective in the first call on a device: make the views first, which may refuse a tensor.
  ProcessGroup& group() const { return groups.on(device); }
};

/// Sends `count` calls as one. `issue(i)` must not refuse: that would break the group.
template <typename Issue>
Work launch_together(ProcessGroup& group, std::size_t count, Issue&& issue) {
  Coalesce together(group);
  for (std::size_t i = 0; i < count; ++i) together.add(issue(i));
  return together.launch();
}

class BackendOverTutti final : public ::c10d::Backend {
 public:
  struct Options final : ::c10d::Backend::Options {
    explicit Options(milliseconds limit) : ::c10d::Backend::Options("tutti", limit) {}
    c10::intrusive_ptr<::c10d::Backend::Options> clone() const override {
      return c10::make_intrusive<Options>(*this);
    }
  };

  BackendOverTutti(std::unique_ptr<Groups> groups, milliseconds timeout)
      : ::c10d::Backend(groups->host().rank(), groups->host().size()),
        options_(c10::make_intrusive<Options>(timeout)),
        timeout_(timeout),
        groups_(std::move(groups)) {}

  const std::string getBackendName() const override { return "tutti"; }
  c10::intrusive_ptr<::c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(milliseconds timeout) override {
    timeout_ = timeout;
    options_->timeout = timeout;
    in_torch_errors([&] { groups_->set_timeout(timeout); });
  }
  std::uint64_t getSequenceNumberForGroup() override { return seq_; }
  void setSequenceNumberForGroup() override {}  // Numbers begin at 0 on every rank.
  void abort() override { groups_->abort("abort() was called"); }
  void shutdown() override { drain_futures(); }
  Groups& groups() noexcept { return *groups_; }

  /// Not with a device bound to the group: new_group() would then call a function of NCCL's class.
  bool supportsSplitting() const override { return !bound_device_id_.has_value(); }
  c10::intrusive_ptr<::c10d::Backend> split(
      const c10::intrusive_ptr<::c10d::Store>&, const std::vector<int>& ranks,
      const c10::intrusive_ptr<::c10d::Backend::Options>& options) override {
    auto part = in_torch_errors([&] { return groups_->subset(ranks, call_options(timeout_)); });
    if (part == nullptr) return nullptr;
    return c10::make_intrusive<BackendOverTutti>(std::move(part),
                                                 options ? options->timeout : timeout_.load());
  }

  WorkPointer allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) override {
    const auto& tensor = only(tensors);
    if (tensor.is_sparse()) return allreduce_sparse(tensors, options);
    return issue(OpType::ALLREDUCE, "tutti:all_reduce", tensors, options,
                 [&](Call& call, const Run& run) {
                   const auto op = reduce_op(tensor, options.reduceOp);
                   const auto data = call.arrays.reduced(tensor, Use::writes);
                   if (run.blocks)
                     run.group().all_reduce(data, op, run.options);
                   else
                     call.work = run.group().all_reduce_async(data, op, run.options);
                 });
  }

  /// The ranks' indices and values are gathered, and their sum is coalesced. Blocks.
  WorkPointer allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& options) override {
    const auto& tensor = only(tensors);
    TORCH_CHECK_VALUE(options.reduceOp == ::c10d::ReduceOp::SUM,
                      "tutti: the only reduction of sparse tensors is SUM");
    if (!tensor.device().is_cpu())
      C10_THROW_ERROR(NotImplementedError,
                      c10::str("tutti: the sparse tensor is on ", tensor.device(),
                               "; sparse tensors are reduced on cpu"));
    return issue(OpType::_ALLREDUCE_SPARSE, "tutti:all_reduce", tensors, options,
                 [&](Call& call, const Run& run) {
                   const auto local = tensor.coalesce();
                   const auto indices = local.indices().t().contiguous();  // [rows, sparse dims]
                   const auto values = local.values().contiguous();        // [rows, ...]
                   const std::vector<std::int64_t> mine{indices.size(0)};
                   std::vector<std::int64_t> rows(static_cast<std::size_t>(size_));
                   run.group().all_gather(mine, rows, {}, run.options);
                   const auto gather = [&](const at::Tensor& from) {
                     auto shape = from.sizes().vec();
                     shape[0] = c10::sum_integers(rows);
                     auto all = at::empty(shape, from.options());
                     const auto row =
                         c10::multiply_integers(shape.begin() + 1, shape.end()) * units_of(from);
                     auto counts = rows;
                     for (auto& count : counts) count *= row;
                     const auto in = call.arrays.moved(from, Use::reads);
                     const auto out = call.arrays.moved(all, Use::writes);
                     run.group().all_gather(in, out, counts, run.options);
                     return all;
                   };
                   const auto sum = at::_sparse_coo_tensor_unsafe(gather(indices).t(),
                                                                  gather(values), tensor.sizes())
                                        .coalesce();
                   tensor.copy_(sum);
                 });
  }

  WorkPointer allreduce_coalesced(Tensors& tensors,
                                  const ::c10d::AllreduceCoalescedOptions& options) override {
    return issue(OpType::ALLREDUCE_COALESCED, "tutti:all_reduce", tensors, options,
                 [&](Call& call, const Run& run) {
                   auto op = ReduceOp::sum;
                   std::vector<TensorView> data;
                   for (const auto& tensor : tensors) {
                     op = reduce_op(tensor, options.reduceOp);
                     data.push_back(call.arrays.reduced(tensor, Use::writes));
                   }
                   auto& group = run.group();
                   call.work = launch_together(group, data.size(), [&](std::size_t i) {
                     return group.all_reduce_async(data[i], op, run.options);
                   });
                 });
  }

  WorkPointer broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) override {
    const auto& tensor = only(tensors);
    return issue(OpType::BROADCAST, "tutti:broadcast", tensors, options,
                 [&](Call& call, const Run& run) {
                   const auto data = call.arrays.moved(tensor, Use::writes);
                   const int root = static_cast<int>(options.rootRank);
                   if (run.blocks)
                     run.group().broadcast(data, root, run.options);
                   else
                     call.work = run.group().broadcast_async(data, root, run.options);
                 });
  }

  WorkPointer reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) override {
    const auto& tensor = only(tensors);
    return issue(OpType::REDUCE, "tutti:reduce", tensors, options, [&](Call& call, const Run& run) {
      const int root = static_cast<int>(options.rootRank);
      const auto op = reduce_op(tensor, options.reduceOp);
      const auto in = call.arrays.reduced(tensor, rank_ == root ? Use::writes : Use::reads);
      const auto out = rank_ == root ? in : TensorView();
      if (run.blocks)
        run.group().reduce(in, out, root, op, run.options);
      else
        call.work = run.group().reduce_async(in, out, root, op, run.options);
    });
  }

  /// The lengths of the ranks' tensors may differ; each rank's list of outputs has them.
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const ::c10d::AllgatherOptions& options) override {
    const auto& input = only(inputs);
    check_list(outputs, input, false);
    return issue(
        OpType::ALLGATHER, "tutti:all_gather", inputs, options, [&](Call& call, const Run& run) {
          call.outputs = outputs;
          const auto in = call.arrays.moved(input, Use::reads);
          const auto out = call.arrays.joined(outputs[0], Use::writes);
          if (run.blocks)
            run.group().all_gather(in, out, lengths(outputs[0]), run.options);
          else
            call.work = run.group().all_gather_async(in, out, lengths(outputs[0]), run.options);
        });
  }

  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const ::c10d::AllgatherOptions& options) override {
    check_parts(output, input, "output tensor", "input tensor");
    return issue(OpType::_ALLGATHER_BASE, "tutti:all_gather", {input}, options,
                 [&](Call& call, const Run& run) {
                   call.outputs = {{output}};
                   const auto in = call.arrays.moved(input, Use::reads);
                   const auto out = call.arrays.moved(output, Use::writes);
                   if (run.blocks)
                     run.group().all_gather(in, out, {}, run.options);
                   else
                     call.work = run.group().all_gather_async(in, out, {}, run.options);
                 });
  }

  WorkPointer allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const ::c10d::AllgatherOptions& options) override {
    TORCH_CHECK_VALUE(outputs.size() == static_cast<std::size_t>(size_), "tutti: ", outputs.size(),
                      " output lists; there must be one for each of the ", size_, " ranks");
    return issue(OpType::ALLGATHER_COALESCED, "tutti:all_gather", inputs, options,
                 [&](Call& call, const Run& run) {
                   call.outputs = outputs;
                   std::vector<TensorView> in;
                   std::vector<TensorView> out;
                   std::vector<std::vector<std::int64_t>> counts;
                   for (std::size_t i = 0; i < inputs.size(); ++i) {
                     Tensors of_ranks;
                     for (const auto& list : outputs) of_ranks.push_back(list.at(i));
                     in.push_back(call.arrays.moved(inputs[i], Use::reads));
                     out.push_back(call.arrays.joined(of_ranks, Use::writes));
                     counts.push_back(lengths(of_ranks));
                   }
                   auto& group = run.group();
                   call.work = launch_together(group, in.size(), [&](std::size_t i) {
                     return group.all_gather_async(in[i], out[i], counts[i], run.options);
                   });
                 });
  }

  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const ::c10d::AllgatherOptions& options) override {
    check_pairs(outputs, inputs);
    return issue(OpType::ALLGATHER_INTO_TENSOR_COALESCED, "tutti:all_gather", inputs, options,
                 [&](Call& call, const Run& run) {
                   call.outputs = {outputs};
                   std::vector<TensorView> in;
                   std::vector<TensorView> out;
                   for (std::size_t i = 0; i < inputs.size(); ++i) {
                     in.push_back(call.arrays.moved(inputs[i], Use::reads));
                     out.push_back(call.arrays.moved(outputs[i], Use::writes));
                   }
                   auto& group = run.group();
                   call.work = launch_together(group, in.size(), [&](std::size_t i) {
                     return group.all_gather_async(in[i], out[i], {}, run.options);
                   });
                 });
  }

  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const ::c10d::GatherOptions& options) override {
    const auto& input = only(inputs);
    const bool is_root = check_root(options.rootRank, outputs, input);
    return issue(OpType::GATHER, "tutti:gather", inputs, options, [&](Call& call, const Run& run) {
      call.outputs = is_root ? outputs : std::vector<Tensors>{{}};
      const auto in = call.arrays.moved(input, Use::reads);
      const auto out = is_root ? call.arrays.joined(outputs[0], Use::writes) : TensorView();
      call.work =
          run.group().gather_async(in, out, static_cast<int>(options.rootRank), {}, run.options);
    });
  }

  WorkPointer gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                 const ::c10d::GatherOptions& options) override {
    const bool is_root = rank_ == options.rootRank;
    if (is_root) check_parts(output, input, "output tensor", "input tensor");
    return issue(OpType::GATHER, "tutti:gather", {input}, options, [&](Call& call, const Run& run) {
      call.outputs = {is_root ? Tensors{output} : Tensors{}};
      const auto in = call.arrays.moved(input, Use::reads);
      const auto out = is_root ? call.arrays.moved(output, Use::writes) : TensorView();
      call.work =
          run.group().gather_async(in, out, static_cast<int>(options.rootRank), {}, run.options);
    });
  }

  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const ::c10d::ScatterOptions& options) override {
    const auto& output = only(outputs);
    const bool is_root = check_root(options.rootRank, inputs, output);
    return issue(
        OpType::SCATTER, "tutti:scatter", outputs, options, [&](Call& call, const Run& run) {
          const auto in = is_root ? call.arrays.joined(inputs[0], Use::reads) : TensorView();
          const auto out = call.arrays.moved(output, Use::writes);
          call.work = run.group().scatter_async(in, out, static_cast<int>(options.rootRank), {},
                                                run.options);
        });
  }

  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const ::c10d::ReduceScatterOptions& options) override {
    const auto& output = only(outputs);
    check_list(inputs, output, false);
    return issue(OpType::REDUCE_SCATTER, "tutti:reduce_scatter", outputs, options,
                 [&](Call& call, const Run& run) {
                   const auto op = reduce_op(output, options.reduceOp);
                   const auto out = call.arrays.reduced(output, Use::writes);
                   const auto in = call.arrays.joined(inputs[0], Use::reads);
                   call.work = run.group().reduce_scatter_async(in, out, lengths(inputs[0]), op,
                                                                run.options);
                 });
  }

  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const ::c10d::ReduceScatterOptions& options) override {
    check_parts(input, output, "input tensor", "output tensor");
    return issue(OpType::_REDUCE_SCATTER_BASE, "tutti:reduce_scatter", {output}, options,
                 [&](Call& call, const Run& run) {
                   const auto op = reduce_op(output, options.reduceOp);
                   const auto in = call.arrays.reduced(input, Use::reads);
                   const auto out = call.arrays.reduced(output, Use::writes);
                   if (run.blocks)
                     run.group().reduce_scatter(in, out, {}, op, run.options);
                   else
                     call.work = run.group().reduce_scatter_async(in, out, {}, op, run.options);
                 });
  }

  WorkPointer reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const ::c10d::ReduceScatterOptions& options) override {
    check_pairs(outputs, inputs);
    return issue(OpType::REDUCE_SCATTER_TENSOR_COALESCED, "tutti:reduce_scatter", outputs, options,
                 [&](Call& call, const Run& run) {
                   auto op = ReduceOp::sum;
                   std::vector<TensorView> in;
                   std::vector<TensorView> out;
                   for (std::size_t i = 0; i < inputs.size(); ++i) {
                     op = reduce_op(outputs[i], options.reduceOp);
                     in.push_back(call.arrays.reduced(inputs[i], Use::reads));
                     out.push_back(call.arrays.reduced(outputs[i], Use::writes));
                   }
                   auto& group = run.group();
                   call.work = launch_together(group, in.size(), [&](std::size_t i) {
                     return group.reduce_scatter_async(in[i], out[i], {}, op, run.options);
                   });
                 });
  }

  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<std::int64_t>& output_rows,
                            std::vector<std::int64_t>& input_rows,
                            const ::c10d::AllToAllOptions& options) override {
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
                   if (run.blocks)
                     run.group().all_to_all(in, out, send, receive, run.options);
                   else
                     call.work = run.group().all_to_all_async(in, out, send, receive, run.options);
                 });
  }

  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const ::c10d::AllToAllOptions& options) override {
    const auto ranks = static_cast<std::size_t>(size_);
    TORCH_CHECK_VALUE(outputs.size() == ranks && inputs.size() == ranks, "tutti: ", inputs.size(),
                      " inputs and ", outputs.size(),
                      " outputs; there must be one for each of the ", size_, " ranks");
    return issue(
        OpType::ALLTOALL, "tutti:all_to_all", inputs, options, [&](Call& call, const Run& run) {
          call.outputs = {outputs};
          const auto in = call.arrays.joined(inputs, Use::reads);
          const auto out = call.arrays.joined(outputs, Use::writes);
          call.work =
              run.group().all_to_all_async(in, out, lengths(inputs), lengths(outputs), run.options);
        });
  }

  /// With device_ids it is one of the group on that device, after the work on the current stream.
  WorkPointer barrier(const ::c10d::BarrierOptions& options) override {
    const c10::Device device =
        options.device_ids.empty()
            ? c10::Device(c10::kCPU)
            : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(options.device_ids[0]));
    return issue(OpType::BARRIER, "tutti:barrier", device, {}, options,
                 [&](Call& call, const Run& run) {
                   if (run.blocks)
                     run.group().barrier(run.options);
                   else
                     call.work = run.group().barrier_async(run.options);
                 });
  }

  /// A rank that is late breaks no group. Programs and torch's tests look for these words.
  void monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all) override {
    const auto limit = options.timeout == ::c10d::kUnsetTimeout ? timeout_.load() : options.timeout;
    try {
      groups_->host().monitored_barrier({.deadline = Deadline::after(limit)});
    } catch (const Error& error) {
      auto late = error.where().missing;
      if (error.code() != Errc::timeout) throw_as_torch(error);
      if (limit <= kNoTimeout || std::ranges::find(late, rank_) != late.end())
        C10_THROW_ERROR(DistBackendError,
                        c10::str("tutti: Rank ", rank_, " timed out in monitoredBarrier after ",
                                 limit.count(), " ms: ", error.what()));
      if (rank_ != 0)
        C10_THROW_ERROR(DistBackendError,
                        c10::str("tutti: Rank ", rank_, " successfully reached monitoredBarrier, ",
                                 "but other ranks did not: ", error.what()));
      if (!wait_all && late.size() > 1) late.resize(1);
      C10_THROW_ERROR(
          DistBackendError,
          c10::str("tutti: ", wait_all ? "Ranks " : "Rank ", c10::Join(", ", late),
                   " failed to pass monitoredBarrier in ", limit.count(), " ms: ", error.what()));
    }
  }

  WorkPointer send(Tensors& tensors, int peer, int tag) override {
    return issue(OpType::SEND, "tutti:send", tensors, NoOptions(), [&](Call& call, const Run& run) {
      const auto data = call.arrays.moved(only(tensors), Use::reads);
      call.work = run.group().send_async(data, peer, tag, run.options);
    });
  }
  WorkPointer recv(Tensors& tensors, int peer, int tag) override {
    return receive(OpType::RECV, tensors, peer, tag);
  }
  WorkPointer recvAnysource(Tensors& tensors, int tag) override {
    return receive(OpType::RECVANYSOURCE, tensors, any_peer, tag);
  }

 private:
  WorkPointer receive(OpType type, Tensors& tensors, int peer, int tag) {
    return issue(type, "tutti:recv", tensors, NoOptions(), [&](Call& call, const Run& run) {
      const auto data = call.arrays.moved(only(tensors), Use::writes);
      // A copy back would wait for the sender here, before a later send of this rank.
      TORCH_CHECK_VALUE(run.device.is_cpu() || !call.arrays.copies_back(),
                        "tutti: the tensor of a receive on ", run.device, " is not contiguous");
      call.work = run.group().recv_async(data, peer, tag, run.options, &call.source);
    });
  }

  static CallOptions call_options(milliseconds timeout) {
    CallOptions options;
    options.timeout = timeout;
    options.integer_avg = true;
    return options;
  }

  /// Runs `start(call, run)`. If the caller waits at once, `run.blocks` is true, and `start` may
  /// use the blocking verb, which needs no other thread.
  template <typename Options, typename Start>
  WorkPointer issue(OpType type, const char* title, const Tensors& inputs, const Options& options,
                    Start&& start) {
    const auto& first = inputs.empty() ? at::Tensor() : inputs[0];
    return issue(type, title, first.defined() ? first.device() : c10::Device(c10::kCPU), inputs,
                 options, std::forward<Start>(start));
  }
  template <typename Options, typename Start>
  WorkPointer issue(OpType type, const char* title, const c10::Device& device,
                    const Tensors& inputs, const Options& options, Start&& start) {
    if (!device.is_cpu() && !device.is_cuda())
      C10_THROW_ERROR(NotImplementedError, c10::str("tutti: the tensor is on ", device,
                                                    "; this backend takes cpu and cuda"));
    auto call = std::make_shared<Call>(device);
    const auto limit = options.timeout == ::c10d::kUnsetTimeout || options.timeout == kNoTimeout
                           ? timeout_.load()
                           : options.timeout;
    const auto seq = ::c10d::isP2POp(type) ? seq_.load() : ++seq_;
    auto work = c10::make_intrusive<CallWork>(rank_, type, title, inputs, call, seq, limit);
    call->outputs = {inputs};
    const c10::NoGradGuard off;
    in_torch_errors([&] {
      Run run{*groups_, device, call_options(limit), !options.asyncOp};
      run.options = libtorch::detail::on_current_stream(device, run.options);
      start(*call, run);
      const bool ended = call->work.state() == nullptr;
      if (!device.is_cpu()) {
        call->in_stream_order = run.group().backend() == "nccl";
        if (ended || call->arrays.copies_back()) call->end_on_stream();
      } else if (ended) {
        call->arrays.copy_back();
        call->done = true;
      } else if (call->arrays.copies_back()) {
        // Before later calls, which may read what it writes.
        call->work = std::move(call->work).then([&arrays = call->arrays] { arrays.copy_back(); });
      }
    });
    return work;
  }

  static ReduceOp reduce_op(const at::Tensor& tensor, const ::c10d::ReduceOp& op) {
    TORCH_CHECK_VALUE(!tensor.is_complex() || ::c10d::isComplexViewAsRealAllowed(op),
                      "tutti: all_reduce does not support this ReduceOp on complex tensors");
    return to_reduce_op(op);
  }

  /// Row counts of dim 0, in elements of a view. Even if there are none.
  std::vector<std::int64_t> elements_of(const std::vector<std::int64_t>& rows,
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

  /// Of a list that has one tensor for each rank, like `one`.
  void check_list(const std::vector<Tensors>& lists, const at::Tensor& one, bool equal) const {
    TORCH_CHECK_VALUE(lists.size() == 1, "tutti: ", lists.size(),
                      " lists of tensors where the call requires a single-element list");
    TORCH_CHECK_VALUE(lists[0].size() == static_cast<std::size_t>(size_),
                      "tutti: ", lists[0].size(),
                      " tensors in a list: Incorrect list size, should be ", size_);
    for (const auto& tensor : lists[0]) {
      TORCH_CHECK_VALUE(tensor.scalar_type() == one.scalar_type(),
                        "tutti: invalid tensor type: ", tensor.scalar_type(), " in the list, and ",
                        one.scalar_type());
      TORCH_CHECK_VALUE(!equal || tensor.numel() == one.numel(),
                        "tutti: invalid tensor size: ", tensor.numel(),
                        " elements in the list, and ", one.numel());
    }
  }
  bool check_root(std::int64_t root, const std::vector<Tensors>& lists,
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
  void check_parts(const at::Tensor& whole, const at::Tensor& part, const char* of_whole,
                   const char* of_part) const {
    TORCH_CHECK_VALUE(whole.scalar_type() == part.scalar_type(), "tutti: the ", of_whole,
                      " has dtype ", whole.scalar_type(), "; it must have the same type as the ",
                      of_part, ", ", part.scalar_type());
    TORCH_CHECK_VALUE(whole.numel() == part.numel() * size_, "tutti: the ", of_whole, " has ",
                      whole.numel(), " elements; its size must be equal to ", size_,
                      " (the world size) times that of the ", of_part, ", ", part.numel());
  }
  static void check_pairs(const Tensors& outputs, const Tensors& inputs) {
    TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "tutti: ", outputs.size(), " outputs and ",
                      inputs.size(), " inputs; they must be as many");
  }

  c10::intrusive_ptr<Options> options_;
  std::atomic<milliseconds> timeout_;
  std::atomic<std::uint64_t> seq_{0};
  std::unique_ptr<Groups> groups_;
};

}  // namespace

c10::intrusive_ptr<::c10d::Backend> make_backend(const BackendOptions& options) {
  return in_torch_errors([&] {
    return c10::make_intrusive<BackendOverTutti>(std::make_unique<Groups>(options),
                                                 options.timeout);
  });
}

namespace {

Groups& groups_of(const c10::intrusive_ptr<::c10d::Backend>& backend) {
  auto* ours = dynamic_cast<BackendOverTutti*>(backend.get());
  if (ours == nullptr)
    C10_THROW_ERROR(TypeError, c10::str("tutti: this is a backend ", backend->getBackendName()));
  return ours->groups();
}

}  // namespace

ProcessGroup& group_under(const c10::intrusive_ptr<::c10d::Backend>& backend) {
  return groups_of(backend).host();
}

std::string describe(const c10::intrusive_ptr<::c10d::Backend>& backend) {
  return groups_of(backend).describe();
}

}  // namespace tutti::c10d_door
