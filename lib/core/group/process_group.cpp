#include <tutti/process_group.hpp>

#include <array>
#include <utility>

#include "group/call.hpp"
#include "group/core.hpp"
#include "values/described.hpp"

// The verbs: each fills in an Op. Core does the rest.

namespace tutti {
namespace {

/// A separate function, because GCC 12 emits `rep stos` for the aggregate when it is initialised in
/// place. Starting `rep stos` takes longer than all other work of the front.
Op make(Operation kind, const ConstTensorView& in, const TensorView& out, ReduceOp reduce = {},
        Rows rows = {}, int root = -1) {
  return {.kind = kind, .in = in, .out = out, .rows = rows, .reduce = reduce, .root = root};
}

Op make_pair(Operation kind, const ConstTensorView& in, const TensorView& out, int peer, int tag) {
  return {.kind = kind, .in = in, .out = out, .peer = peer, .tag = tag};
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

ProcessGroup ProcessGroup::share() const {
  return ProcessGroup(core().shared_from_this());
}

int ProcessGroup::rank() const {
  return core().options().rank;
}
int ProcessGroup::size() const {
  return core().options().size;
}
const std::string& ProcessGroup::name() const {
  return core().options().name;
}
int ProcessGroup::local_rank() const {
  return internal::without_bad_alloc([&] { return core().ranks_on_host_below(rank()); });
}

int ProcessGroup::local_size() const {
  return internal::without_bad_alloc([&] { return core().ranks_on_host_below(size()); });
}

std::string ProcessGroup::transport() const {
  return internal::without_bad_alloc([&] { return core().transport(); });
}
const std::string& ProcessGroup::backend() const {
  return core().backend_name();
}
const std::string& ProcessGroup::backend_reason() const {
  return core().backend_reason();
}
Memory& ProcessGroup::memory() {
  return core().memory();
}
Memory& ProcessGroup::registrable_memory() {
  return core().registrable_memory();
}

bool ProcessGroup::supports(Operation operation, DType dtype, ReduceOp op) const {
  return core().supports(operation, dtype, op.kind);
}

void ProcessGroup::set_timeout(std::chrono::nanoseconds timeout) {
  core().set_timeout(timeout);
}
std::chrono::nanoseconds ProcessGroup::timeout() const {
  return core().timeout();
}
std::uint64_t ProcessGroup::sequence_number() const {
  return core().sequence_number();
}
void ProcessGroup::monitored_barrier(const CallOptions& options) {
  core().monitored_barrier(options);
}

// Generates both forms of every verb from one description. The macros stay in this file.
#define TUTTI_VERB(name, params, ...)                                 \
  void ProcessGroup::name params {                                    \
    Op op_ = __VA_ARGS__;                                             \
    (void)core().issue(op_, options, internal::Core::Wait::stream);   \
  }                                                                   \
  Work ProcessGroup::name##_async params {                            \
    Op op_ = __VA_ARGS__;                                             \
    return core().issue(op_, options, internal::Core::Wait::nothing); \
  }
#define TUTTI_ARGS(...) (__VA_ARGS__, const CallOptions& options)

TUTTI_VERB(all_reduce, TUTTI_ARGS(const TensorView& data, ReduceOp op),
           make(Operation::all_reduce, data, data, op))
TUTTI_VERB(all_reduce, TUTTI_ARGS(const ConstTensorView& in, const TensorView& out, ReduceOp op),
           make(Operation::all_reduce, in, out, op))
TUTTI_VERB(scan, TUTTI_ARGS(const ConstTensorView& in, const TensorView& out, ReduceOp op),
           make(Operation::scan, in, out, op))
TUTTI_VERB(exclusive_scan,
           TUTTI_ARGS(const ConstTensorView& in, const TensorView& out, ReduceOp op),
           make(Operation::exclusive_scan, in, out, op))
TUTTI_VERB(broadcast, TUTTI_ARGS(const TensorView& data, int root),
           make(Operation::broadcast, data, data, {}, {}, root))
TUTTI_VERB(reduce,
           TUTTI_ARGS(const ConstTensorView& in, const TensorView& out, int root, ReduceOp op),
           make(Operation::reduce, in, out, op, {}, root))
TUTTI_VERB(all_gather, TUTTI_ARGS(const ConstTensorView& in, const TensorView& out, Rows rows),
           make(Operation::all_gather, in, out, {}, rows))
TUTTI_VERB(reduce_scatter,
           TUTTI_ARGS(const ConstTensorView& in, const TensorView& out, Rows rows, ReduceOp op),
           make(Operation::reduce_scatter, in, out, op, rows))
TUTTI_VERB(all_to_all,
           TUTTI_ARGS(const ConstTensorView& in, const TensorView& out, Rows send_rows,
                      Rows recv_rows),
           make(Operation::all_to_all, in, out, {}, recv_rows);
           op_.send_rows = send_rows)
TUTTI_VERB(gather,
           TUTTI_ARGS(const ConstTensorView& in, const TensorView& out, int root, Rows rows),
           make(Operation::gather, in, out, {}, rows, root))
TUTTI_VERB(scatter,
           TUTTI_ARGS(const ConstTensorView& in, const TensorView& out, int root, Rows rows),
           make(Operation::scatter, in, out, {}, rows, root))
TUTTI_VERB(barrier, (const CallOptions& options), make(Operation::barrier, {}, {}))
TUTTI_VERB(send, TUTTI_ARGS(const ConstTensorView& data, int peer, int tag),
           make_pair(Operation::send, data, {}, peer, tag))

#undef TUTTI_ARGS
#undef TUTTI_VERB

void ProcessGroup::all_reduce_on_host(const TensorView& data, ReduceOp op,
                                      const CallOptions& options) {
  internal::host_call(*this, make(Operation::all_reduce, data, data, op), options);
}

int ProcessGroup::recv(const TensorView& data, int peer, int tag, const CallOptions& options) {
  Op op = make_pair(Operation::recv, {}, data, peer, tag);
  if (peer != any_peer) [[likely]] {
    (void)core().issue(op, options, internal::Core::Wait::stream);
    return peer;
  }
  int source = any_peer;
  op.source = &source;
  core().issue(op, options, internal::Core::Wait::host).wait();
  return source;
}

Work ProcessGroup::recv_async(const TensorView& data, int peer, int tag, const CallOptions& options,
                              int* source) {
  Op op = make_pair(Operation::recv, {}, data, peer, tag);
  if (peer == any_peer)
    op.source = source;
  else if (source != nullptr)
    *source = peer;
  return core().issue(op, options, internal::Core::Wait::nothing);
}

void ProcessGroup::sendrecv(const ConstTensorView& in, int to, const TensorView& out, int from,
                            int tag, const CallOptions& options) {
  std::array pair{make_pair(Operation::send, in, {}, to, tag),
                  make_pair(Operation::recv, {}, out, from, tag)};
  (void)core().issue_pair(pair, options, internal::Core::Wait::stream);
}

Work ProcessGroup::sendrecv_async(const ConstTensorView& in, int to, const TensorView& out,
                                  int from, int tag, const CallOptions& options) {
  std::array pair{make_pair(Operation::send, in, {}, to, tag),
                  make_pair(Operation::recv, {}, out, from, tag)};
  return core().issue_pair(pair, options, internal::Core::Wait::nothing);
}

std::optional<ProcessGroup> ProcessGroup::split(int color, int key, const CallOptions& options) {
  return core().split(color, key, options);
}

ProcessGroup ProcessGroup::shrink(std::span<const int> lost, std::chrono::nanoseconds patience) {
  return core().shrink(lost, patience);
}

std::optional<ProcessGroup> ProcessGroup::subset(std::span<const int> ranks,
                                                 const CallOptions& options) {
  return core().subset(ranks, options);
}

Registration ProcessGroup::register_memory(const TensorView& block, const CallOptions& options) {
  return core().register_memory(block, options);
}

void ProcessGroup::abort(std::string_view why) noexcept {
  if (core_ != nullptr) core_->abort(why);
}

Trace ProcessGroup::trace() const {
  return internal::without_bad_alloc([&] { return core().trace(); });
}

}  // namespace tutti
