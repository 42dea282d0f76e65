#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "agreement.hpp"
#include "bounded.hpp"
#include "channel.hpp"
#include "communicator.hpp"
#include "cuda/pinned_memory.hpp"
#include "group/call_queue.hpp"
#include "launch.hpp"
#include "point_to_point.hpp"
#include "sole_rank.hpp"
#include "work.hpp"

namespace tutti::backend::nccl {

/// A group on one rank: its communicator, its calls, and the thread that watches them. Called from
/// any thread.
class Group : public std::enable_shared_from_this<Group> {
 public:
  /// Blocks until all ranks are there. @throws Error.
  static std::shared_ptr<Group> make(const BackendInit& init, const Apis& apis);
  Group(const BackendInit& init, const Apis& apis);  ///< For make().
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Work launch(std::span<const Op> ops, const Call& call);
  void refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept;
  void abort(std::string_view why) noexcept;
  std::optional<Error> failure() const;
  /// Ends what is under way, by its deadlines; then the threads and the communicators. Once.
  void leave() noexcept;

  bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept;
  Memory& memory() const noexcept { return memory_; }
  RegistrationKind registrable(const TensorView& block, Stream stream) const;
  Registration register_memory(const TensorView& block, RegistrationKind kind, Deadline limit);
  Memory& registrable_memory() const noexcept;
  Memory& staging_memory() noexcept { return pinned_; }
  Apis apis() const noexcept { return gpu_->apis(); }
  const BackendInit& init() const noexcept { return init_; }

 private:
  using Clock = std::chrono::steady_clock;
  using States = std::vector<std::shared_ptr<EventState>>;

  /// Memory that NCCL knows, by its handle.
  struct Registered {
    RegistrationKind kind;
    void* handle;
    friend bool operator==(const Registered&, const Registered&) = default;
  };
  class Held;
  void await_window(const TensorView& block, void** handle, const std::string& what,
                    Deadline limit);
  void end_registration(const Registered& entry) noexcept;
  void end_registrations() noexcept;
  void deregister(const Registered& entry) noexcept;

  void connect(Deadline limit);
  void warm_up(Deadline limit);
  /// Now and then while the group is being made. @throws Error what went wrong elsewhere.
  void look_before_it_is_made();
  void load_kernels();
  /// Until the communicator is made.
  void await(Deadline limit);
  void refuse_capture(std::span<const Op> ops, const Call& call) const;
  cudaStream_t capture_stream(cudaStream_t from);
  /// Where a call runs that is not captured; behind all calls before it.
  cudaStream_t stream_of(std::span<const Op> ops, const Call& call);
  /// Puts the group's own stream behind the last call.
  void catch_up();
  std::shared_ptr<EventState> make_state(std::span<const Op> ops, const Call& call, Deadline limit);
  std::shared_ptr<EventState> post(const Op& op, const Call& call, Deadline limit);
  std::shared_ptr<Channel> channel(const Op& op);
  std::shared_ptr<EventState> run(std::span<const Op> ops, const Call& call, Deadline limit,
                                  bool captured);
  /// Gives the call to NCCL. It may not be on the stream yet when this returns.
  void queue(std::span<const Op> ops, const std::shared_ptr<EventState>& state);
  /// What can be done for the call that NCCL has been given last. True when it has been queued.
  bool advance_launch();
  void await_launch(Deadline limit);
  void count_rows() noexcept;
  void watch(const std::shared_ptr<EventState>& state);
  void watch_graphs();

  /// The group breaks, because of this or of what a peer said first.
  void fail(const Error& mine) noexcept;
  void break_with(const Error& cause) noexcept;
  /// A call of this rank reached its deadline.
  void fail_late(const Op& op, const Call& call, Clock::time_point since) noexcept;
  /// What a call throws once the group is broken. Waits until nothing touches its arrays any more.
  Error why_ended(const Op& op, const Call& call) const noexcept;
  Error error_of(const Op& op, const Call& call) const noexcept;
  std::string describe(const Op& op, const Call& call) const;

  void work();  // The thread.
  void tick(const States& states);
  void look_at_graphs() noexcept;
  void look_around(const States& states, Clock::time_point now);
  void end_everything(const States& states) noexcept;
  bool stand_still(Deadline limit) noexcept;
  Communicators communicators() const;
  std::vector<std::shared_ptr<Channel>> channels() const;

  BackendInit init_;
  std::shared_ptr<Gpu> gpu_;
  Memory& memory_;
  cuda::PinnedMemory pinned_;
  CudaStream stream_;
  Tensor token_{};  // Of one element, for barriers.
  const cuda::FoldKernels* kernels_ = nullptr;
  std::string no_kernels_;  // Why.
  Agreement agreement_;
  std::optional<SoleRank> sole_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<internal::CallQueue> order_;
  SelfBox self_;
  Counting counting_;

  std::mutex launch_mutex_;  // Before mutex_.
  std::optional<Launch> launch_;
  std::shared_ptr<EventState> elsewhere_;  ///< The last call, unless it is on the group's stream.

  std::mutex registered_mutex_;  // Before the two others.
  std::vector<Registered> registered_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  States pending_;
  std::map<std::tuple<bool, int, int>, std::shared_ptr<Channel>> channels_;
  /// By where a capture begins.
  std::map<std::pair<cudaStream_t, std::thread::id>, std::unique_ptr<CudaStream>> capture_streams_;
  bool has_graphs_ = false;
  std::optional<Error> failure_;
  std::string late_;        // After an abort that did not end: what the errors say about it.
  std::uint64_t next_ = 0;  // The number behind the last collective of this rank.
  bool ended_ = false;      // Broken, and nothing is under way any more.
  bool connected_ = false;  // Set before there is a thread.
  bool stop_ = false;
  bool left_ = false;
  std::atomic<bool> broken_{false};

  Clock::time_point next_look_{};  // These belong to the thread, once there is one.
  std::map<int, Clock::time_point> gone_since_;
  std::thread thread_;
};

}  // namespace tutti::backend::nccl
