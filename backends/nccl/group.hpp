#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <tutti/backend/backend_table.hpp>

#include "backend/call_history.hpp"
#include "backend/call_queue.hpp"
#include "connection.hpp"
#include "cuda/pinned_pool.hpp"
#include "failure.hpp"
#include "launcher.hpp"
#include "point_to_point.hpp"
#include "registrations.hpp"
#include "watcher.hpp"

namespace tutti::backend::nccl {

/// A group on one rank, composed of its parts. A call takes its turn here, is launched by the
/// Launcher or PointToPoint, and is ended by the Watcher.
///
/// Called from any thread. Has no mutex of its own. The mutexes of the parts are locked in the
/// order Registrations, Launcher, PointToPoint, Watcher, Failure.
class Group : public std::enable_shared_from_this<Group> {
 public:
  /// Blocks until all ranks have joined. @throws Error.
  static std::shared_ptr<Group> make(const BackendInit& init, const Apis& apis);
  Group(const BackendInit& init, const Apis& apis);  ///< For make().
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Work launch(std::span<const Op> ops, const Call& call);
  void refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept;
  void abort(std::string_view why) noexcept;
  Registration register_memory(const TensorView& block, RegistrationKind kind, Deadline limit) {
    return registrations_.add(block, kind, limit, weak_from_this());
  }
  /// Waits for the calls in flight until their deadlines, then ends the group's thread and its
  /// communicators; an adopted communicator is left to the program. Only the first call has an
  /// effect.
  void leave() noexcept;

  const BackendInit& init() const noexcept { return init_; }
  Apis apis() const noexcept { return gpu_->apis(); }
  Memory& memory() const noexcept { return memory_; }
  Memory& staging_memory() noexcept { return *pinned_; }
  const Failure& failure() const noexcept { return failure_; }
  const Launcher& launcher() const noexcept { return launcher_; }
  const Registrations& registrations() const noexcept { return registrations_; }

 private:
  void warm_up(Deadline limit);
  std::shared_ptr<EventState> make_state(std::span<const Op> ops, const Call& call, Deadline limit);
  /// Posts the messages among `ops`.
  void post(std::span<const Op> ops, const Call& call, Deadline limit, std::vector<Work>& works);
  /// Launches the operations that are not messages as one call, in its turn, and returns its state.
  /// Null if there are none.
  std::shared_ptr<EventState> run(std::span<const Op> ops, const Call& call, Deadline limit,
                                  bool captured);

  BackendInit init_;
  std::shared_ptr<Gpu> gpu_;
  Memory& memory_;
  std::shared_ptr<Memory> scratch_;
  std::shared_ptr<cuda::PinnedPool> pinned_;
  std::shared_ptr<internal::CallQueue> order_;
  std::shared_ptr<Store> store_;
  Failure failure_;
  internal::CallHistory history_;
  Connection connection_;
  Launcher launcher_;
  PointToPoint messages_;
  Registrations registrations_;
  Watcher watcher_;
  std::atomic<std::uint64_t> next_{0};  // One more than the number of this rank's last collective.
};

}  // namespace tutti::backend::nccl
