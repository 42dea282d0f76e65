#include "communicator.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <thread>
#include <utility>

#include "values/fail.hpp"

namespace tutti::backend::nccl {

ncclUniqueId to_id(std::span<const std::byte> bytes, std::string_view whose) {
  ncclUniqueId id;
  if (bytes.size() != sizeof id)
    internal::failf(Errc::mismatch, "the NCCL id of {} has {} bytes, this rank's has {}", whose,
                    bytes.size(), sizeof id);
  std::memcpy(&id, bytes.data(), sizeof id);
  return id;
}

Communicator::~Communicator() = default;

void Communicator::require() const {
  if (comm_ == nullptr) tutti::fail(Errc::aborted, "the communicator has ended");
}

void Communicator::begin(const ncclUniqueId& id, int rank, int size) {
  const std::lock_guard lock(mutex_);
  if (aborted_) tutti::fail(Errc::aborted, "the communicator has ended");
  const DeviceScope scope(gpu_->cuda(), gpu_->index());
  ncclConfig_t config = gpu_->settings().config();
  check(gpu_->nccl(), gpu_->nccl().comm_init_rank_config(&comm_, size, id, rank, &config),
        "ncclCommInitRankConfig");
}

void Communicator::adopt(const AdoptedCommunicator& adopted) {
  const std::lock_guard lock(mutex_);
  if (aborted_) tutti::fail(Errc::aborted, "the communicator has ended");
  comm_ = static_cast<ncclComm_t>(adopted.communicator);
  adopted_ = true;
  aborting_ = adopted.aborting;
}

bool Communicator::ready() {
  const std::lock_guard lock(mutex_);
  return ready_now();
}

void Communicator::look() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) (void)ready_now();
}

bool Communicator::ready_now() {
  require();
  ncclResult_t state = ncclSuccess;
  check(gpu_->nccl(), gpu_->nccl().comm_get_async_error(comm_, &state), "ncclCommGetAsyncError");
  check(gpu_->nccl(), state, "a call under way in NCCL");
  return state == ncclSuccess;
}

void Communicator::keep(std::shared_ptr<void> what) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(what));
}

void Communicator::abort() noexcept {
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    comm = std::exchange(comm_, nullptr);
  }
  if (comm == nullptr) return;
  // ncclCommAbort frees memory, which is prohibited while another thread captures.
  const cuda::RelaxedCapture relaxed(gpu_->cuda());
  if (aborting_) aborting_();
  // Without the lock: the abort may hang, and threads that wait for the lock have deadlines.
  (void)gpu_->nccl().comm_abort(comm);
}

bool Communicator::begin_end() noexcept {
  const std::lock_guard lock(mutex_);
  if (adopted_) comm_ = nullptr;  // The program ends an adopted communicator.
  if (comm_ == nullptr) return true;
  const auto state = gpu_->nccl().comm_finalize(comm_);
  return state == ncclSuccess || state == ncclInProgress;
}

bool Communicator::ended() noexcept {
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return true;
    ncclResult_t state = ncclSuccess;
    if (gpu_->nccl().comm_get_async_error(comm_, &state) != ncclSuccess || state != ncclSuccess)
      return false;
    comm = std::exchange(comm_, nullptr);
  }
  (void)gpu_->nccl().comm_destroy(comm);  // Without the lock, as in abort().
  return true;
}

void Communicator::hold_by_graph(cudaStream_t stream) {
  using Graphs = decltype(graphs_);
  auto held = std::make_unique<Graphs>(graphs_);
  const auto on_end = [](void* data) {
    const std::unique_ptr<Graphs> graphs(static_cast<Graphs*>(data));
    --**graphs;
  };
  ++*graphs_;
  const auto code = gpu_->cuda().at_graph_end(stream, held.get(), on_end);
  if (code != cudaSuccess) --*graphs_;
  check(gpu_->cuda(), code, "cudaGraphRetainUserObject");
  (void)held.release();
}

void Communicator::use_device() const noexcept {
  cuda::use_device(gpu_->cuda(), gpu_->index());
}

namespace {

/// Runs `body` for each communicator on a separate thread, because calls into NCCL may hang.
/// `limit` is `bound` from now. Returns true if all threads have ended by then, except those whose
/// communicator is held by graphs. A thread that hangs keeps its communicator alive.
bool on_threads(const Communicators& all, std::chrono::nanoseconds bound,
                void (*body)(Communicator&, Deadline limit) noexcept) noexcept {
  struct Count {
    std::mutex mutex;
    std::condition_variable changed;
    Communicators left;
  };
  const auto limit = Deadline::after(bound);
  std::shared_ptr<Count> count;
  bool complete = true;
  try {
    count = std::make_shared<Count>();
    for (const auto& communicator : all) {
      const std::lock_guard lock(count->mutex);
      std::thread([count, communicator, body, limit] {
        communicator->use_device();
        body(*communicator, limit);
        const std::lock_guard ending(count->mutex);
        std::erase(count->left, communicator);
        count->changed.notify_all();
      }).detach();
      count->left.push_back(communicator);
    }
  } catch (...) {  // No thread or no memory for one: the remaining communicators are not handled,
                   // and the result is false.
    complete = false;
  }
  if (count == nullptr) return false;
  // NCCL stops the kernels of graphs first, and then waits for the graphs.
  constexpr std::chrono::milliseconds stops_kernels{100};
  std::unique_lock lock(count->mutex);
  const auto ended = [&] { return count->left.empty(); };
  while (!count->changed.wait_for(lock, std::min<std::chrono::nanoseconds>(bound, stops_kernels),
                                  ended)) {
    if (limit.expired()) return false;
    if (std::ranges::all_of(count->left, [](const auto& one) { return one->is_held(); })) break;
  }
  return complete;
}

}  // namespace

bool abort_all(const Communicators& all) noexcept {
  return on_threads(all, abort_bound, [](Communicator& one, Deadline) noexcept { one.abort(); });
}

void end_all(const Communicators& all, std::chrono::nanoseconds timeout) noexcept {
  using std::chrono::seconds;
  const auto polite_bound =
      std::clamp<std::chrono::nanoseconds>(timeout / 30, seconds(1), seconds(10));
  // In parallel: each may wait for its peers.
  (void)on_threads(all, 2 * polite_bound, [](Communicator& one, Deadline limit) noexcept {
    if (!one.begin_end()) return one.abort();
    const auto bound = limit.remaining() / 2;
    auto polite = Deadline::after(bound);
    for (Pause pause; !one.ended(); pause()) {
      if (!one.is_held() && polite.expired()) return one.abort();
      if (!one.is_held()) continue;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      polite = Deadline::after(bound);
    }
  });
}

}  // namespace tutti::backend::nccl
