#include <tutti/process_group.hpp>

#include <utility>

#include "internal/core.hpp"

// The verbs: each fills in an Op. Core does the rest.

namespace tutti {
namespace {

Op element_wise(Operation kind, const ConstTensorView& in, const TensorView& out, ReduceOp op) {
  return {.kind = kind, .in = in, .out = out, .reduce = op};
}

}  // namespace

ProcessGroup ProcessGroup::create(const GroupOptions& options) {
  return internal::Core::create(options);
}
ProcessGroup ProcessGroup::create(const GroupOptions& options, std::unique_ptr<Backend> backend) {
  return internal::Core::create(options, std::move(backend));
}

ProcessGroup::ProcessGroup(std::shared_ptr<internal::Core> core) noexcept
    : core_(std::move(core)) {}
ProcessGroup::ProcessGroup(ProcessGroup&&) noexcept = default;
ProcessGroup& ProcessGroup::operator=(ProcessGroup&&) noexcept = default;
ProcessGroup::~ProcessGroup() = default;

int ProcessGroup::rank() const noexcept {
  return core_->options().rank;
}
int ProcessGroup::size() const noexcept {
  return core_->options().size;
}
const std::string& ProcessGroup::name() const noexcept {
  return core_->options().name;
}
const std::string& ProcessGroup::backend() const noexcept {
  return core_->backend_name();
}
Memory& ProcessGroup::memory() noexcept {
  return core_->memory();
}

bool ProcessGroup::supports(Operation operation, DType dtype, ReduceOp op) const {
  return core_->backend().supports(operation, dtype, op.kind);
}

// Two forms of every verb from one description. Macros stay in this file.
#define TUTTI_VERB(name, params, ...)         \
  void ProcessGroup::name params {            \
    Op op_ = __VA_ARGS__;                     \
    core_->run(op_, options);                 \
  }                                           \
  Work ProcessGroup::name##_async params {    \
    Op op_ = __VA_ARGS__;                     \
    return core_->issue(op_, options, false); \
  }
#define TUTTI_ARGS(...) (__VA_ARGS__, const CallOptions& options)

TUTTI_VERB(all_reduce, TUTTI_ARGS(TensorView data, ReduceOp op),
           element_wise(Operation::all_reduce, data, data, op))
TUTTI_VERB(all_reduce, TUTTI_ARGS(ConstTensorView in, TensorView out, ReduceOp op),
           element_wise(Operation::all_reduce, in, out, op))
TUTTI_VERB(scan, TUTTI_ARGS(ConstTensorView in, TensorView out, ReduceOp op),
           element_wise(Operation::scan, in, out, op))
TUTTI_VERB(exclusive_scan, TUTTI_ARGS(ConstTensorView in, TensorView out, ReduceOp op),
           element_wise(Operation::exclusive_scan, in, out, op))
TUTTI_VERB(broadcast, TUTTI_ARGS(TensorView data, int root),
           Op{.kind = Operation::broadcast, .in = data, .out = data, .root = root})
TUTTI_VERB(reduce, TUTTI_ARGS(ConstTensorView in, TensorView out, int root, ReduceOp op),
           Op{.kind = Operation::reduce, .in = in, .out = out, .reduce = op, .root = root})
TUTTI_VERB(all_gather, TUTTI_ARGS(ConstTensorView in, TensorView out, Rows rows),
           Op{.kind = Operation::all_gather, .in = in, .out = out, .rows = rows})
TUTTI_VERB(reduce_scatter, TUTTI_ARGS(ConstTensorView in, TensorView out, Rows rows, ReduceOp op),
           Op{.kind = Operation::reduce_scatter, .in = in, .out = out, .rows = rows, .reduce = op})
TUTTI_VERB(all_to_all,
           TUTTI_ARGS(ConstTensorView in, TensorView out, Rows send_rows, Rows recv_rows),
           Op{.kind = Operation::all_to_all,
              .in = in,
              .out = out,
              .rows = recv_rows,
              .send_rows = send_rows})
TUTTI_VERB(gather, TUTTI_ARGS(ConstTensorView in, TensorView out, int root, Rows rows),
           Op{.kind = Operation::gather, .in = in, .out = out, .rows = rows, .root = root})
TUTTI_VERB(scatter, TUTTI_ARGS(ConstTensorView in, TensorView out, int root, Rows rows),
           Op{.kind = Operation::scatter, .in = in, .out = out, .rows = rows, .root = root})
TUTTI_VERB(barrier, (const CallOptions& options), Op{.kind = Operation::barrier})
TUTTI_VERB(send, TUTTI_ARGS(ConstTensorView data, int peer, int tag),
           Op{.kind = Operation::send, .in = data, .peer = peer, .tag = tag})
TUTTI_VERB(recv, TUTTI_ARGS(TensorView data, int peer, int tag),
           Op{.kind = Operation::recv, .out = data, .peer = peer, .tag = tag})

#undef TUTTI_ARGS
#undef TUTTI_VERB

std::optional<ProcessGroup> ProcessGroup::split(int color, int key) {
  return core_->split(color, key);
}

std::optional<ProcessGroup> ProcessGroup::subset(std::span<const int> ranks) {
  return core_->subset(ranks);
}

void ProcessGroup::abort(std::string_view why) noexcept {
  core_->abort(why);
}

Trace ProcessGroup::trace() const {
  return core_->trace();
}

}  // namespace tutti
