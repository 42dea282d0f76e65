#include "staged.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/backend/host_backend.hpp>

#include "backend/host_calls.hpp"
#include "backend/record.hpp"
#include "memory.hpp"
#include "messages.hpp"
#include "stage.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"

namespace tutti::backend::cuda {
namespace {

using internal::has_collective;

/// Numbers and runs calls as every HostBackend does. launch() records the position on Call::stream
/// in the caller's thread. The arrays are copied when the stream has reached that position and the
/// call has its turn, because an input may be the output of the previous call.
class Staged final : public HostBackend {
 public:
  Staged(std::unique_ptr<Backend> host, const BackendInit& init, const CudaApi& cuda)
      : HostBackend(init.name, init.rank),
        init_(init),
        gpu_(std::make_shared<Gpu>(cuda, init.device.index)),
        memory_(init.memory == nullptr ? cuda_memory(cuda, init.device.index) : *init.memory),
        staging_{gpu_, pinned_pool(cuda, init.device.index), std::make_shared<CudaStream>(gpu_),
                 init.rank},
        host_(std::move(host)),
        messages_(*host_, staging_, [this](const Error& why, const Message& message) {
          return failed(why, {&message.op(), 1}, message.call());
        }) {
    init_.args.clear();
  }
  ~Staged() override {
    messages_.stop();
    stop();
  }

  bool supports(Operation operation, DType dtype, ReduceOp::Kind kind) const noexcept override {
    return operation != Operation::recv_any && host_->supports(operation, dtype, kind);
  }
  bool reproduces() const noexcept override { return host_->reproduces(); }
  Memory& memory() noexcept override { return memory_; }
  Memory& staging_memory() noexcept override { return *staging_.pool; }

  Work launch(std::span<const Op> ops, const Call& call) override {
    if (const auto cause = failure()) throw internal::broken(*cause);
    if (!has_collective(ops) && !call.in_order) return HostBackend::launch(ops, call);
    Call now = call;
    now.deadline = call.limit();  // The wait for the call's turn counts.
    try {
      auto ready = mark_stream(ops, now);
      const std::lock_guard lock(mutex_);
      points_.emplace(call.seq, std::move(ready));
    } catch (...) {  // A refused call uses up its number.
      refuse(ops, call, internal::to_error(std::current_exception()));
      throw;
    }
    try {
      return HostBackend::launch(ops, now);
    } catch (...) {
      (void)point_of(call.seq);
      throw;
    }
  }

  std::unique_ptr<Backend> split(const SplitInit& init) override {
    auto host = host_->split(init);
    if (host == nullptr) return nullptr;
    return make_staged(std::move(host), init_.part(init), gpu_->cuda());
  }

  void abort(std::string_view why) noexcept override {
    host_->abort(why);
    if (const auto cause = failure()) fail_queued(*cause);
  }
  std::optional<Error> failure() const override {
    {
      const std::lock_guard lock(mutex_);
      if (cause_) return cause_;
    }
    return host_->failure();
  }
  std::string transport() const override {
    const auto inner = host_->transport();
    return fmt::format("{}{}pinned host memory", inner, inner.empty() ? "" : ", staged in ");
  }

 protected:
  void run(std::span<const Op> ops, const Call& call) override {
    std::vector<Op> collectives;
    for (const auto& op : ops)
      if (!is_point_to_point(op.kind)) collectives.push_back(op);
    carry(collectives, call, point_of(call.seq), false);
  }

  void post(std::span<const Op> ops, const Call& call, Posts& posted) override {
    const bool with_collective = has_collective(ops);
    if (call.in_order && !with_collective) {
      return carry(ops, call, point_of(call.seq), true);  // post() runs in the call's turn.
    }
    const auto ready = with_collective ? point_of(call.seq, false) : mark_stream(ops, call);
    const auto limit = call.limit();
    posted.reserve(ops.size());
    for (const auto& op : ops) {
      if (!is_point_to_point(op.kind)) continue;
      auto message = calls().make_state<Message>(ready, op, call, limit);
      messages_.post(message);
      posted.add(std::move(message));
    }
  }

  void publish(std::span<const Op> ops, const Call& call, const Error& why) noexcept override {
    host_->refuse(ops, call, why);
  }

 private:
  StreamPoint mark_stream(std::span<const Op> ops, const Call& call) {
    try {
      const DeviceScope scope(gpu_->cuda(), gpu_->index());
      refuse_capture(call);
      auto ready = std::make_shared<Gpu::Event>(gpu_->event());
      ready->record(to_cuda(call.stream));
      return ready;
    } catch (...) {
      throw failed(internal::to_error(std::current_exception()), ops, call);
    }
  }

  StreamPoint point_of(std::uint64_t seq, bool last = true) {
    const std::lock_guard lock(mutex_);
    const auto found = points_.find(seq);
    if (found == points_.end()) return nullptr;
    const auto ready = found->second;
    if (last) points_.erase(found);
    return ready;
  }

  void refuse_capture(const Call& call) const {
    if (is_capturing(*gpu_, to_cuda(call.stream)))
      tutti::fail(Errc::unsupported,
                  "the call's stream is being captured into a CUDA graph, which staging through "
                  "host memory cannot be part of; call it outside of the capture");
  }

  /// Copies to the host, runs the call and copies back, on this thread, in the call's turn.
  void carry(std::span<const Op> ops, const Call& call, const StreamPoint& ready, bool in_order) {
    Call now = call;
    now.stream = {};
    now.deadline = call.limit();
    now.blocking = true;
    now.in_order = in_order;
    std::vector<std::unique_ptr<Stage>> stages;
    std::vector<Op> on_host;
    const auto here = [&](const auto& step) {
      try {
        step();
      } catch (...) {  // Every error breaks the group, so the numbers of later calls do not matter.
        throw failed(internal::to_error(std::current_exception()), ops, call);
      }
    };
    here([&] {
      const auto intact = [&] {
        if (const auto cause = failure()) throw internal::broken(*cause);
      };
      await(
          now.deadline, late_text, [&] { return ready->done(); }, intact);
      for (const auto& op : ops) stages.push_back(std::make_unique<Stage>(staging_, op));
      end(stages);
      for (std::size_t i = 0; i < ops.size(); ++i) on_host.push_back(stages[i]->on_host(ops[i]));
    });
    host_->launch(on_host, now).wait();
    here([&] {
      for (std::size_t i = 0; i < ops.size(); ++i) stages[i]->bring_back(ops[i]);
      end(stages);
    });
  }

  /// Blocks until the copies have run. Needs no deadline, because their stream has no other work.
  static void end(const std::vector<std::unique_ptr<Stage>>& stages) {
    for (const auto& staged : stages)
      for (Pause pause; !staged->ready(); pause()) {
      }
  }

  /// Adds the call's location to an error. An error that breaks the group becomes the first cause,
  /// unless there is one already, and aborts the group.
  Error failed(const Error& why, std::span<const Op> ops, const Call& call) noexcept {
    const Error error =
        why.where().operation.empty()
            ? internal::call_error(why.code(), group(), ops, call, rank(), why.message())
            : why;
    if (!internal::breaks_group(error.code()) || host_->failure()) return error;
    {
      const std::lock_guard lock(mutex_);
      if (!cause_) cause_ = error;
    }
    abort(error.message());
    return error;
  }

  BackendInit init_;
  std::shared_ptr<Gpu> gpu_;
  Memory& memory_;
  Staging staging_;
  mutable std::mutex mutex_;
  std::optional<Error> cause_;  // The first failure that did not begin in the host's backend.
  std::map<std::uint64_t, StreamPoint> points_;  // By number, of calls that await their turn.
  std::unique_ptr<Backend> host_;
  Messages messages_;
};

}  // namespace

std::unique_ptr<Backend> make_staged(std::unique_ptr<Backend> host, const BackendInit& init,
                                     const CudaApi& cuda) {
  return std::make_unique<Staged>(std::move(host), init, cuda);
}

}  // namespace tutti::backend::cuda
