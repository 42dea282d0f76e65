#include "launcher.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "backend/record.hpp"
#include "kernels/reduce.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {
namespace {

/// The time for which launch() itself advances a call. After it the Watcher does.
constexpr std::chrono::milliseconds hand_over{2};
/// The longest wait for the release of memory at the end.
constexpr std::chrono::seconds release_bound{1};

/// True for an operation that needs the host: a graph cannot contain it.
bool needs_host(const Op& op, const Call& call) noexcept {
  return op.kind == Operation::barrier || op.kind == Operation::all_gather_bounded ||
         is_message(op, call);
}

/// Checks a captured call. @throws Error unsupported for operations that need the host.
void refuse_capture(std::span<const Op> ops, const Call& call) {
  for (const auto& op : ops)
    if (needs_host(op, call))
      internal::failf(Errc::unsupported,
                      "{} cannot be captured into a CUDA graph; call it outside of the capture",
                      name_of(op.kind));
}

}  // namespace

Launcher::Launcher(std::shared_ptr<Gpu> gpu, const BackendInit& init, Memory& memory,
                   Failure& failure, std::shared_ptr<Communicator> communicator)
    : gpu_(std::move(gpu)),
      init_(init),
      failure_(failure),
      communicator_(std::move(communicator)),
      streams_(gpu_),
      context_{*gpu_, streams_.own(), memory, init.rank, init.size, nullptr, nullptr},
      counting_(gpu_, init.size) {}

Launcher::~Launcher() {
  if (failure_.is_broken()) return;
  try {
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    const cuda::RelaxedCapture relaxed(gpu_->cuda());
    token_ = {};
    const auto limit = Deadline::after(release_bound);
    for (const auto stream : {streams_.own(), counting_.stream()}) {
      auto end = gpu_->event();
      end.record(stream);
      for (Pause pause; !end.done() && !limit.expired();) pause();
    }
  } catch (...) {  // The device is lost.
  }
}

void Launcher::prepare() {
  token_ = Tensor(context_.memory, {1}, DType::f32, stream());
  context_.token = token_.data();
  check(gpu_->cuda(), gpu_->cuda().memset_async(token_.data(), 0, sizeof(float), streams_.own()),
        "cudaMemsetAsync");
  load_kernels();
  counting_.reserve();
}

void Launcher::load_kernels() {
  try {
    const auto& kernels = cuda::fold_kernels(gpu_->apis().driver, gpu_->apis().fold_image);
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    kernels.load(streams_.own());
    context_.kernels = &kernels;
  } catch (const Error& error) {  // Most operations need no kernels.
    no_kernels_ = error.message();
  }
}

bool Launcher::supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept {
  const bool folds = context_.kernels != nullptr && internal::can_reduce(dtype, reduce);
  switch (operation) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
      return can_reduce(dtype, reduce) || folds;
    case Operation::scan:
    case Operation::exclusive_scan:
      return folds;
    case Operation::recv_any:
      return false;  // NCCL cannot receive from any rank.
    default:
      return true;
  }
}

bool Launcher::check_call(std::span<const Op> ops, const Call& call) const {
  const bool captured = cuda::is_capturing(*gpu_, to_cuda(call.stream));
  if (captured) refuse_capture(ops, call);
  if (context_.kernels != nullptr) return captured;
  for (const auto& op : ops)
    if (needs_kernels(op, init_.size, call.order_fixed))
      internal::failf(Errc::unsupported,
                      "{} {} of {} in the order of {} ranks needs kernels of tutti itself, which "
                      "this process cannot use: {}",
                      name_of(op.kind), name_of(op.reduce.kind), name_of(op.in.dtype), init_.size,
                      no_kernels_);
  return captured;
}

void Launcher::launch(std::span<const Op> ops, const std::shared_ptr<EventState>& state) {
  const bool captured = state->is_captured();
  std::optional<DeviceScope> scope;
  std::optional<cuda::RelaxedCapture> relaxed;
  if (captured) {
    scope.emplace(gpu_->cuda(), gpu_->index());
    relaxed.emplace(gpu_->cuda());
  }
  await(state->limit());  // Until the previous call has been queued.
  const auto is_of_nccl = [&](const Op& op) {
    return needs_nccl(op, init_.size, state->call().order_fixed);
  };
  if (captured && std::ranges::any_of(ops, is_of_nccl))
    communicator_->hold_by_graph(to_cuda(state->call().stream));
  auto turn = gpu_->turn(state->limit());
  {
    const auto& call = state->call();
    const std::lock_guard lock(mutex_);
    auto context = context_;
    context.stream = captured ? streams_.for_capture(to_cuda(call.stream))
                              : streams_.choose(ops, call, init_.size);
    launch_.emplace(context, communicator_, ops, state, std::move(turn), counting_);
    if (!captured && context.stream != streams_.own()) {
      state->run_on_its_stream();
      streams_.ran_elsewhere(state);
    }
  }
  if (captured) return await(state->limit());  // The capture may end when launch() returns.
  // The Watcher continues while NCCL waits for other ranks: their calls may depend on this thread.
  const auto enough = std::chrono::steady_clock::now() + hand_over;
  for (Pause pause; !advance(); pause()) {
    if (std::chrono::steady_clock::now() > enough) return;
    failure_.require_intact();
  }
}

bool Launcher::advance() {
  const std::lock_guard lock(mutex_);
  if (launch_ && launch_->advance()) launch_.reset();
  return !launch_;
}

bool Launcher::try_advance() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return true;
  if (launch_ && launch_->advance()) launch_.reset();
  return !launch_;
}

void Launcher::await(Deadline limit) {
  cuda::await(
      limit, late_in_nccl, [&] { return advance(); }, [&] { failure_.require_intact(); });
  failure_.require_intact();  // A call that was given up counts as queued.
}

void Launcher::await_rows() noexcept {
  try {
    for (Pause pause; !failure_.is_broken(); pause())
      if (advance() && spread_rows()) return;
  } catch (...) {
    failure_.fail(internal::to_error(std::current_exception()));
  }
}

void Launcher::mark_end(Gpu::Event& end) {
  const std::lock_guard lock(mutex_);
  streams_.catch_up();
  end.record(streams_.own());
}

std::vector<cudaStream_t> Launcher::streams() {
  std::vector<cudaStream_t> all{streams_.own(), counting_.stream()};
  const std::lock_guard lock(mutex_);
  // The caller waits until its call has been queued, so the caller's stream exists.
  if (launch_ && !launch_->is_captured())
    all.push_back(launch_->stream());
  else
    streams_.catch_up();
  return all;
}

void Launcher::give_up(bool idle) noexcept {
  // NCCL may be queuing the call, whose memory is kept until the device is idle.
  const std::lock_guard lock(mutex_);
  if (launch_) launch_->give_up();
  if (!idle) return;
  launch_.reset();
  counting_.forget();
}

}  // namespace tutti::backend::nccl
