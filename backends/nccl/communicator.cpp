#include "communicator.hpp"

#include <algorithm>
#include <condition_variable>
#include <thread>
#include <utility>

#include "internal/fail.hpp"

namespace tutti::backend::nccl {

Communicator::~Communicator() = default;

void Communicator::require() const {
  if (comm_ == nullptr) tutti::fail(Errc::aborted, "the communicator has ended");
}

void Communicator::begin(const ncclUniqueId& id, int rank, int size) {
  const std::lock_guard lock(mutex_);
  if (aborted_) tutti::fail(Errc::aborted, "the communicator has ended");
  const DeviceScope scope(gpu_->cuda(), gpu_->index());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
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

void Communicator::await(Deadline limit, const std::function<void()>& look) {
  Pause pause;
  while (!ready()) {
    look();
    if (limit.expired()) tutti::fail(Errc::timeout, "the deadline passed inside NCCL");
    pause();
  }
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
  const cuda::RelaxedCapture relaxed(gpu_->cuda());  // It frees what it has.
  if (aborting_) aborting_();
  // Without the lock: it may hang, and whoever waits for the lock has a deadline.
  (void)gpu_->nccl().comm_abort(comm);
}

void Communicator::begin_end() noexcept {
  const std::lock_guard lock(mutex_);
  if (adopted_) comm_ = nullptr;  // Its owner ends it.
  if (comm_ == nullptr) return;
  const auto state = gpu_->nccl().comm_finalize(comm_);
  if (state == ncclSuccess || state == ncclInProgress) return;
  (void)gpu_->nccl().comm_abort(std::exchange(comm_, nullptr));
}

bool Communicator::ended() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return true;
  ncclResult_t state = ncclSuccess;
  if (gpu_->nccl().comm_get_async_error(comm_, &state) != ncclSuccess) return false;
  if (state == ncclSuccess) (void)gpu_->nccl().comm_destroy(std::exchange(comm_, nullptr));
  return state == ncclSuccess;
}

bool abort_all(const Communicators& all, std::chrono::nanoseconds bound) noexcept {
  struct Count {
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t left;
  };
  try {
    const auto count = std::make_shared<Count>();
    count->left = all.size();
    for (const auto& communicator : all)
      std::thread([count, communicator] {
        communicator->abort();
        const std::lock_guard lock(count->mutex);
        --count->left;
        count->changed.notify_all();
      }).detach();
    std::unique_lock lock(count->mutex);
    return count->changed.wait_for(lock, bound, [&] { return count->left == 0; });
  } catch (...) {  // No thread or no memory for one: then here, however long it takes.
    for (const auto& communicator : all) communicator->abort();
    return true;
  }
}

void end_all(const Communicators& all, std::chrono::nanoseconds bound) noexcept {
  for (const auto& communicator : all) communicator->begin_end();
  const auto limit = Deadline::after(bound);
  Communicators left = all;
  for (Pause pause; !limit.expired(); pause()) {
    std::erase_if(left, [](const auto& communicator) { return communicator->ended(); });
    if (left.empty()) return;
  }
  (void)abort_all(left, bound);
}

}  // namespace tutti::backend::nccl
