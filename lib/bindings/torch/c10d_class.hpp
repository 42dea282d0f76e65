#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <tutti/adapters/torch/detail/device.hpp>
#include <tutti/coalesce.hpp>
#include <tutti/process_group.hpp>

#include "torch/arrays.hpp"
#include "torch/c10d_work.hpp"
#include "torch/errors.hpp"
#include "torch/groups.hpp"
#include "torch/versions.hpp"

namespace tutti::c10d_door {

using std::chrono::milliseconds;
using WorkPointer = c10::intrusive_ptr<::c10d::Work>;
using ::c10d::OpType;

/// The tensor of a list that must have one.
const at::Tensor& only(const Tensors& tensors);

/// The group, the device and the options of a call that runs.
struct Run {
  Groups& groups;
  c10::Device device;
  CallOptions options;
  bool blocks;  ///< The caller waits at once, so the blocking verb may be used.

  /// Collective in the first call on a device: make the views first, which may refuse a tensor.
  ProcessGroup& group() const { return groups.on(device); }
};

/// Calls a verb of the group of `run`, a Run: the blocking form, or the async form, whose Work
/// `call` gets.
#define TUTTI_RUN(verb, ...)                                        \
  if (run.blocks)                                                   \
    (void)run.group().verb(__VA_ARGS__ __VA_OPT__(, ) run.options); \
  else                                                              \
    call.work = run.group().verb##_async(__VA_ARGS__ __VA_OPT__(, ) run.options)

/// The arrays of calls that are sent as one: the input and the output of each.
using Pairs = std::vector<std::pair<TensorView, TensorView>>;

/// Sends a call for each pair, all as one. `issue(group, in, out)` must not refuse: that would
/// break the group.
template <typename Issue>
Work launch_together(const Run& run, const Pairs& pairs, Issue&& issue) {
  ProcessGroup& group = run.group();
  Coalesce together(group);
  for (const auto& [in, out] : pairs) together.add(issue(group, in, out));
  return together.launch();
}

/// The backend that make_backend() makes. c10d_arguments.cpp has its checks, c10d_reductions.cpp
/// and c10d_moves.cpp its collectives.
class BackendOverTutti final : public ::c10d::Backend {
 public:
  struct Options final : ::c10d::Backend::Options {
    explicit Options(milliseconds limit) : ::c10d::Backend::Options("tutti", limit) {}
    c10::intrusive_ptr<::c10d::Backend::Options> clone() const TUTTI_OVERRIDE_FROM_TORCH_2_14 {
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
  void setTimeout(milliseconds timeout) override;
  std::uint64_t getSequenceNumberForGroup() override { return seq_; }
  void setSequenceNumberForGroup() override {}  // Numbers begin at 0 on every rank.
  void abort() override { groups_->abort("abort() was called"); }
  void shutdown() override { drain_futures(); }
  Groups& groups() noexcept { return *groups_; }

  /// Not with a device bound to the group: new_group() would then call a function of NCCL's class.
  bool supportsSplitting() const override { return !bound_device_id_.has_value(); }
  c10::intrusive_ptr<::c10d::Backend> split(
      const c10::intrusive_ptr<::c10d::Store>&, const std::vector<int>& ranks,
      const c10::intrusive_ptr<::c10d::Backend::Options>& options) override;
  WorkPointer allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) override;

  /// The ranks' indices and values are gathered, and their sum is coalesced. Blocks.
  WorkPointer allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors,
                                  const ::c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) override;

  /// The lengths of the ranks' tensors may differ; each rank's list of outputs has them.
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const ::c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const ::c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const ::c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const ::c10d::AllgatherOptions& options) override;
  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const ::c10d::GatherOptions& options) override;
  WorkPointer gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                 const ::c10d::GatherOptions& options)
      TUTTI_OVERRIDE_FROM_TORCH_2_14;
  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const ::c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const ::c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const ::c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const ::c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<std::int64_t>& output_rows,
                            std::vector<std::int64_t>& input_rows,
                            const ::c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const ::c10d::AllToAllOptions& options) override;

  /// With device_ids it is one of the group on that device, after the work on the current stream.
  WorkPointer barrier(const ::c10d::BarrierOptions& options) override;

  /// A rank that is late breaks no group. Programs and torch's tests look for these words.
  void monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all) override;
  WorkPointer send(Tensors& tensors, int peer, int tag) override;
  WorkPointer recv(Tensors& tensors, int peer, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;

 private:
  WorkPointer receive(OpType type, Tensors& tensors, int peer, int tag);

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
    auto call = std::make_shared<Call>(device, getGroupDesc());
    const auto limit = options.timeout == ::c10d::kUnsetTimeout || options.timeout == kNoTimeout
                           ? timeout_.load()
                           : options.timeout;
    const auto seq = ::c10d::isP2POp(type) ? seq_.load() : ++seq_;
    auto work = c10::make_intrusive<CallWork>(rank_, type, title, inputs, call, seq, limit);
    call->outputs = {inputs};
    const c10::NoGradGuard off;
    in_torch_errors(getGroupDesc(), [&] {
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

  static ReduceOp reduce_op(const at::Tensor& tensor, const ::c10d::ReduceOp& op);

  /// Row counts of dim 0, in elements of a view. Even if there are none.
  std::vector<std::int64_t> elements_of(const std::vector<std::int64_t>& rows,
                                        const at::Tensor& tensor) const;

  /// Of a list that has one tensor for each rank, like `one`.
  void check_list(const std::vector<Tensors>& lists, const at::Tensor& one, bool equal) const;
  bool check_root(std::int64_t root, const std::vector<Tensors>& lists,
                  const at::Tensor& one) const;
  void check_parts(const at::Tensor& whole, const at::Tensor& part, const char* of_whole,
                   const char* of_part) const;
  static void check_pairs(const Tensors& outputs, const Tensors& inputs);

  c10::intrusive_ptr<Options> options_;
  std::atomic<milliseconds> timeout_;
  std::atomic<std::uint64_t> seq_{0};
  std::unique_ptr<Groups> groups_;
};

}  // namespace tutti::c10d_door
