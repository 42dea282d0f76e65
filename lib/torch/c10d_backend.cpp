#include "torch/c10d_backend.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <tutti/coalesce.hpp>
#include <tutti/process_group.hpp>

#include "torch/arrays.hpp"
#include "torch/c10d_store.hpp"
#include "torch/c10d_work.hpp"
#include "torch/errors.hpp"

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

/// A name has 1 to 200 bytes.
std::string name_of_group(const std::string& group) {
  return group.empty() ? "world" : group.substr(0, 200);
}

class BackendOverTutti final : public ::c10d::Backend {
 public:
  struct Options final : ::c10d::Backend::Options {
    explicit Options(milliseconds limit) : ::c10d::Backend::Options("tutti", limit) {}
    c10::intrusive_ptr<::c10d::Backend::Options> clone() const override {
      return c10::make_intrusive<Options>(*this);
    }
  };

  BackendOverTutti(ProcessGroup group, milliseconds timeout)
      : ::c10d::Backend(group.rank(), group.size()),
        options_(c10::make_intrusive<Options>(timeout)),
        timeout_(timeout),
        group_(std::move(group)) {}

  const std::string getBackendName() const override { return "tutti"; }
  c10::intrusive_ptr<::c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(milliseconds timeout) override {
    timeout_ = timeout;
    options_->timeout = timeout;
    in_torch_errors([&] { group_.set_timeout(timeout); });
  }
  std::uint64_t getSequenceNumberForGroup() override { return seq_; }
  void setSequenceNumberForGroup() override {}  // Numbers begin at 0 on every rank.
  void abort() override { group_.abort("abort() was called"); }
  void shutdown() override { drain_futures(); }
  ProcessGroup& group() noexcept { return group_; }

  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<::c10d::Backend> split(
      const c10::intrusive_ptr<::c10d::Store>&, const std::vector<int>& ranks,
      const c10::intrusive_ptr<::c10d::Backend::Options>& options) override {
    auto part = in_torch_errors([&] { return group_.subset(ranks, call_options(timeout_)); });
    if (!part) return nullptr;
    return c10::make_intrusive<BackendOverTutti>(std::move(*part),
                                                 options ? options->timeout : timeout_.load());
  }

  WorkPointer allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) override {
    const auto& tensor = only(tensors);
    if (tensor.is_sparse()) return allreduce_sparse(tensors, options);
    return issue(OpType::ALLREDUCE, "tutti:all_reduce", tensors, options,
                 [&](Call& call, const CallOptions& with, bool blocks) {
                   const auto op = reduce_op(tensor, options.reduceOp);
                   const auto data = call.arrays.reduced(tensor, Use::writes);
                   if (blocks)
                     group_.all_reduce(data, op, with);
                   else
                     call.work = group_.all_reduce_async(data, op, with);
                 });
  }

  /// The ranks' indices and values are gathered, and their sum is coalesced. Blocks.
  WorkPointer allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& options) override {
    const auto& tensor = only(tensors);
    TORCH_CHECK_VALUE(options.reduceOp == ::c10d::ReduceOp::SUM,
                      "tutti: the only reduction of sparse tensors is SUM");
    return issue(OpType::_ALLREDUCE_SPARSE, "tutti:all_reduce", tensors, options,
                 [&](Call& call, const CallOptions& with, bool) {
                   const auto local = tensor.coalesce();
                   const auto indices = local.indices().t().contiguous();  // [rows, sparse dims]
                   const auto values = local.values().contiguous();        // [rows, ...]
                   const std::vector<std::int64_t> mine{indices.size(0)};
                   std::vector<std::int64_t> rows(static_cast<std::size_t>(size_));
                   group_.all_gather(mine, rows, {}, with);
                   const auto gather = [&](const at::Tensor& from) {
                     auto shape = from.sizes().vec();
                     shape[0] = c10::sum_integers(rows);
                     auto all = at::empty(shape, from.options());
                     const auto row =
                         c10::multiply_integers(shape.begin() + 1, shape.end()) * units_of(from);
                     auto counts = rows;
                     for (auto& count : counts) count *= row;
                     group_.all_gather(call.arrays.moved(from, Use::reads),
                                       call.arrays.moved(all, Use::writes), counts, with);
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
    return issue(
        OpType::ALLREDUCE_COALESCED, "tutti:all_reduce", tensors, options,
        [&](Call& call, const CallOptions& with, bool) {
          Coalesce together(group_);
          for (const auto& tensor : tensors)
            together.add(group_.all_reduce_async(call.arrays.reduced(tensor, Use::writes),
                                                 reduce_op(tensor, options.reduceOp), with));
          call.work = together.launch();
        });
  }

  WorkPointer broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) override {
    const auto& tensor = only(tensors);
    return issue(OpType::BROADCAST, "tutti:broadcast", tensors, options,
                 [&](Call& call, const CallOptions& with, bool blocks) {
                   const auto data = call.arrays.moved(tensor, Use::writes);
                   const int root = static_cast<int>(options.rootRank);
                   if (blocks)
                     group_.broadcast(data, root, with);
                   else
                     call.work = group_.broadcast_async(data, root, with);
                 });
  }

  WorkPointer reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) override {
    const auto& tensor = only(tensors);
    return issue(OpType::REDUCE, "tutti:reduce", tensors, options,
                 [&](Call& call, const CallOptions& with, bool blocks) {
                   const int root = static_cast<int>(options.rootRank);
                   const auto op = reduce_op(tensor, options.reduceOp);
                   const auto in =
                       call.arrays.reduced(tensor, rank_ == root ? Use::writes : Use::reads);
                   const auto out = rank_ == root ? in : TensorView();
                   if (blocks)
                     group_.reduce(in, out, root, op, with);
                   else
                     call.work = group_.reduce_async(in, out, root, op, with);
                 });
  }

  /// The lengths of the ranks' tensors may differ; each rank's list of outputs has them.
  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const ::c10d::AllgatherOptions& options) override {
    const auto& input = only(inputs);
    check_list(outputs, input, false);
    return issue(OpType::ALLGATHER, "tutti:all_gather", inputs, options,
                 [&](Call& call, const CallOptions& with, bool blocks) {
                   call.outputs = outputs;
                   const auto in = call.arrays.moved(input, Use::reads);
                   const auto out = call.arrays.joined(outputs[0], Use::writes);
                   if (blocks)
                     group_.all_gather(in, out, lengths(outputs[0]), with);
                   else
                     call.work = group_.all_gather_async(in, out, lengths(outputs[0]), with);
                 });
  }

  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const ::c10d::AllgatherOptions& options) override {
    check_parts(output, input, "output tensor", "input tensor");
    return issue(OpType::_ALLGATHER_BASE, "tutti:all_gather", {input}, options,
                 [&](Call& call, const CallOptions& with, bool blocks) {
                   call.outputs = {{output}};
                   const auto in = call.arrays.moved(input, Use::reads);
                   const auto out = call.arrays.moved(output, Use::writes);
                   if (blocks)
                     group_.all_gather(in, out, {}, with);
                   else
                     call.work = group_.all_gather_async(in, out, {}, with);
                 });
  }

  WorkPointer allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const ::c10d::AllgatherOptions& options) override {
    TORCH_CHECK_VALUE(outputs.size() == static_cast<std::size_t>(size_), "tutti: ", outputs.size(),
                      " output lists; there must be one for each of the ", size_, " ranks");
    return issue(OpType::ALLGATHER_COALESCED, "tutti:all_gather", inputs, options,
                 [&](Call& call, const CallOptions& with, bool) {
                   call.outputs = outputs;
                   Coalesce together(group_);
                   for (std::size_t i = 0; i < inputs.size(); ++i) {
                     Tensors of_ranks;
                     for (const auto& list : outputs) of_ranks.push_back(list.at(i));
                     together.add(group_.all_gather_async(call.arrays.moved(inputs[i], Use::reads),
                                                          call.arrays.joined(of_ranks, Use::writes),
                                                          lengths(of_ranks), with));
                   }
                   call.work = together.launch();
                 });
  }

  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const ::c10d::AllgatherOptions& options) override {
    check_pairs(outputs, inputs);
    return issue(OpType::ALLGATHER_INTO_TENSOR_COALESCED, "tutti:all_gather", inputs, options,
                 [&](Call& call, const CallOptions& with, bool) {
                   call.outputs = {outputs};
                   Coalesce together(group_);
                   for (std::size_t i = 0; i < inputs.size(); ++i)
                     together.add(group_.all_gather_async(
                         call.arrays.moved(inputs[i], Use::reads),
                         call.arrays.moved(outputs[i], Use::writes), {}, with));
                   call.work = together.launch();
                 });
  }

  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const ::c10d::GatherOptions& options) override {
    const auto& input = only(inputs);
    const bool is_root = check_root(options.rootRank, outputs, input);
    return issue(OpType::GATHER, "tutti:gather", inputs, options,
                 [&](Call& call, const CallOptions& with, bool) {
                   call.outputs = is_root ? outputs : std::vector<Tensors>{{}};
                   call.work = group_.gather_async(
                       call.arrays.moved(input, Use::reads),
                       is_root ? call.arrays.joined(outputs[0], Use::writes) : TensorView(),
                       static_cast<int>(options.rootRank), {}, with);
                 });
  }

  WorkPointer gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                 const ::c10d::GatherOptions& options) override {
    const bool is_root = rank_ == options.rootRank;
    if (is_root) check_parts(output, input, "output tensor", "input tensor");
    return issue(OpType::GATHER, "tutti:gather", {input}, options,
                 [&](Call& call, const CallOptions& with, bool) {
                   call.outputs = {is_root ? Tensors{output} : Tensors{}};
                   call.work = group_.gather_async(
                       call.arrays.moved(input, Use::reads),
                       is_root ? call.arrays.moved(output, Use::writes) : TensorView(),
                       static_cast<int>(options.rootRank), {}, with);
                 });
  }

  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const ::c10d::ScatterOptions& options) override {
    const auto& output = only(outputs);
    const bool is_root = check_root(options.rootRank, inputs, output);
    return issue(OpType::SCATTER, "tutti:scatter", outputs, options,
                 [&](Call& call, const CallOptions& with, bool) {
                   call.work = group_.scatter_async(
                       is_root ? call.arrays.joined(inputs[0], Use::reads) : TensorView(),
                       call.arrays.moved(output, Use::writes), static_cast<int>(options.rootRank),
                       {}, with);
                 });
  }

  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const ::c10d::ReduceScatterOptions& options) override {
    const auto& output = only(outputs);
    check_list(inputs, output, false);
    return issue(OpType::REDUCE_SCATTER, "tutti:reduce_scatter", outputs, options,
                 [&](Call& call, const CallOptions& with, bool) {
                   const auto out = call.arrays.reduced(output, Use::writes);
                   call.work = group_.reduce_scatter_async(
                       call.arrays.joined(inputs[0], Use::reads), out, lengths(inputs[0]),
                       reduce_op(output, options.reduceOp), with);
                 });
  }

  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const ::c10d::ReduceScatterOptions& options) override {
    check_parts(input, output, "input tensor", "output tensor");
    return issue(OpType::_REDUCE_SCATTER_BASE, "tutti:reduce_scatter", {output}, options,
                 [&](Call& call, const CallOptions& with, bool blocks) {
                   const auto op = reduce_op(output, options.reduceOp);
                   const auto in = call.arrays.reduced(input, Use::reads);
                   const auto out = call.arrays.reduced(output, Use::writes);
                   if (blocks)
                     group_.reduce_scatter(in, out, {}, op, with);
                   else
                     call.work = group_.reduce_scatter_async(in, out, {}, op, with);
                 });
  }

  WorkPointer reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const ::c10d::ReduceScatterOptions& options) override {
    check_pairs(outputs, inputs);
    return issue(OpType::REDUCE_SCATTER_TENSOR_COALESCED, "tutti:reduce_scatter", outputs, options,
                 [&](Call& call, const CallOptions& with, bool) {
                   Coalesce together(group_);
                   for (std::size_t i = 0; i < inputs.size(); ++i)
                     together.add(group_.reduce_scatter_async(
                         call.arrays.reduced(inputs[i], Use::reads),
                         call.arrays.reduced(outputs[i], Use::writes), {},
                         reduce_op(outputs[i], options.reduceOp), with));
                   call.work = together.launch();
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
                 [&](Call& call, const CallOptions& with, bool blocks) {
                   call.outputs = {{output}};
                   const auto send = elements_of(input_rows, input);
                   const auto receive = elements_of(output_rows, output);
                   const auto in = call.arrays.moved(input, Use::reads);
                   const auto out = call.arrays.moved(output, Use::writes);
                   if (blocks)
                     group_.all_to_all(in, out, send, receive, with);
                   else
                     call.work = group_.all_to_all_async(in, out, send, receive, with);
                 });
  }

  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const ::c10d::AllToAllOptions& options) override {
    const auto ranks = static_cast<std::size_t>(size_);
    TORCH_CHECK_VALUE(outputs.size() == ranks && inputs.size() == ranks, "tutti: ", inputs.size(),
                      " inputs and ", outputs.size(),
                      " outputs; there must be one for each of the ", size_, " ranks");
    return issue(OpType::ALLTOALL, "tutti:all_to_all", inputs, options,
                 [&](Call& call, const CallOptions& with, bool) {
                   call.outputs = {outputs};
                   call.work = group_.all_to_all_async(call.arrays.joined(inputs, Use::reads),
                                                       call.arrays.joined(outputs, Use::writes),
                                                       lengths(inputs), lengths(outputs), with);
                 });
  }

  WorkPointer barrier(const ::c10d::BarrierOptions& options) override {
    return issue(OpType::BARRIER, "tutti:barrier", {}, options,
                 [&](Call& call, const CallOptions& with, bool blocks) {
                   if (blocks)
                     group_.barrier(with);
                   else
                     call.work = group_.barrier_async(with);
                 });
  }

  /// A rank that is late breaks no group. Programs and torch's tests look for these words.
  void monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all) override {
    const auto limit = options.timeout == ::c10d::kUnsetTimeout ? timeout_.load() : options.timeout;
    try {
      group_.monitored_barrier({.deadline = Deadline::after(limit)});
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
    return issue(OpType::SEND, "tutti:send", tensors, NoOptions(),
                 [&](Call& call, const CallOptions& with, bool) {
                   call.work = group_.send_async(call.arrays.moved(only(tensors), Use::reads), peer,
                                                 tag, with);
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
    return issue(type, "tutti:recv", tensors, NoOptions(),
                 [&](Call& call, const CallOptions& with, bool) {
                   call.work = group_.recv_async(call.arrays.moved(only(tensors), Use::writes),
                                                 peer, tag, with, &call.source);
                 });
  }

  static CallOptions call_options(milliseconds timeout) {
    CallOptions options;
    options.timeout = timeout;
    options.integer_avg = true;
    return options;
  }

  /// Runs `start(call, options, blocks)`. If the caller waits at once, `blocks` is true, and
  /// `start` may use the blocking verb, which needs no other thread.
  template <typename Options, typename Start>
  WorkPointer issue(OpType type, const char* title, const Tensors& inputs, const Options& options,
                    Start&& start) {
    auto call = std::make_shared<Call>();
    const auto limit = options.timeout == ::c10d::kUnsetTimeout || options.timeout == kNoTimeout
                           ? timeout_.load()
                           : options.timeout;
    const auto seq = ::c10d::isP2POp(type) ? seq_.load() : ++seq_;
    auto work = c10::make_intrusive<CallWork>(rank_, type, title, inputs, call, seq, limit);
    call->outputs = {inputs};
    const c10::NoGradGuard off;
    in_torch_errors([&] {
      start(*call, call_options(limit), !options.asyncOp);
      if (call->work.state() == nullptr) {
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
  ProcessGroup group_;
};

}  // namespace

c10::intrusive_ptr<::c10d::Backend> make_backend(const BackendOptions& options) {
  return in_torch_errors([&] {
    GroupOptions group;
    group.name = name_of_group(options.group);
    group.backend = options.backend;
    group.store = make_store(options.store);
    group.rank = options.rank;
    group.size = options.size;
    group.timeout = options.timeout;
    return c10::make_intrusive<BackendOverTutti>(ProcessGroup::create(group), options.timeout);
  });
}

ProcessGroup& group_under(const c10::intrusive_ptr<::c10d::Backend>& backend) {
  auto* ours = dynamic_cast<BackendOverTutti*>(backend.get());
  if (ours == nullptr)
    C10_THROW_ERROR(TypeError, c10::str("tutti: this is a backend ", backend->getBackendName()));
  return ours->group();
}

std::string describe(const c10::intrusive_ptr<::c10d::Backend>& backend) {
  const auto& group = group_under(backend);
  return group.backend() + " over " + group.transport();
}

}  // namespace tutti::c10d_door
