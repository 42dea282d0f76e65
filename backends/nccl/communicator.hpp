#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include <tutti/backend/backend.hpp>
#include <tutti/deadline.hpp>
#include <tutti/group_options.hpp>

#include "gpu.hpp"

namespace tutti::backend::nccl {

/// Between ncclGroupStart and ncclGroupEnd. NCCL's group belongs to the thread: one that stays open
/// swallows every later call, so it is closed however the scope is left.
class GroupScope {
 public:
  explicit GroupScope(const NcclApi& nccl) : nccl_(nccl) {
    check(nccl_, nccl_.group_start(), "ncclGroupStart");
  }
  ~GroupScope() {
    if (open_) (void)nccl_.group_end();
  }
  GroupScope(const GroupScope&) = delete;
  GroupScope& operator=(const GroupScope&) = delete;
  void end() {
    open_ = false;
    check(nccl_, nccl_.group_end(), "ncclGroupEnd");
  }

 private:
  const NcclApi& nccl_;
  bool open_ = true;
};

/// The id that `whose` rank wrote into the store. @throws Error mismatch.
ncclUniqueId to_id(std::span<const std::byte> bytes, std::string_view whose);

/// One ncclComm_t that does not block. Called from any thread, one call into NCCL at a time.
class Communicator {
 public:
  explicit Communicator(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~Communicator();  ///< Leaves a communicator that was neither aborted nor ended as it is.
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Begins to connect; ready() says when all ranks are there.
  void begin(const ncclUniqueId& id, int rank, int size);
  /// Uses one that exists and leaves it alive at the end. An abort calls `aborting` first.
  void adopt(const AdoptedCommunicator& adopted);
  /// True when nothing is under way inside NCCL. @throws Error what went wrong there.
  bool ready();
  /// The errors of ready(), unless another thread is inside NCCL just now. Never blocks.
  void look();

  /// call(ncclComm_t), alone. @throws Error aborted when there is no communicator any more.
  template <typename Call>
  void use(const Call& call) {
    const std::lock_guard lock(mutex_);
    require();
    call(comm_);
  }

  /// Keeps what NCCL may write to until the communicator has ended.
  void keep(std::shared_ptr<void> what);
  /// Ends whatever is under way. May take as long as NCCL likes.
  void abort() noexcept;
  /// The polite end, when nothing is under way: begins unless NCCL refuses, and then until it is
  /// true.
  bool begin_end() noexcept;
  bool ended() noexcept;
  /// For a thread of the library's own.
  void use_device() const noexcept;

 private:
  void require() const;
  bool ready_now();

  std::shared_ptr<Gpu> gpu_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  bool aborted_ = false;
  bool adopted_ = false;
  std::function<void()> aborting_;
  std::vector<std::shared_ptr<void>> kept_;
};

using Communicators = std::vector<std::shared_ptr<Communicator>>;

/// The longest time that abort_all() waits for ncclCommAbort.
constexpr std::chrono::seconds abort_bound{10};

/// Aborts all of them, each on a thread of its own because ncclCommAbort may hang. True when all
/// had ended within abort_bound.
bool abort_all(const Communicators& all) noexcept;

/// Ends all of them politely, on threads of their own, too; aborts those that take longer than a
/// second, and returns after two.
void end_all(const Communicators& all) noexcept;

}  // namespace tutti::backend::nccl
