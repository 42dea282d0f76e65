#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <tutti/backend/backend_table.hpp>
#include <tutti/process_group.hpp>

#include "backend/rank_location.hpp"
#include "group/prepare.hpp"
#include "group/trace_memory.hpp"
#include "group/validate.hpp"
#include "values/fork_guard.hpp"

namespace tutti::internal {

class GroupKeys;
class Membership;
class Rendezvous;
class ValueExchange;
struct MemberList;

/// Receives the calls made while a Coalesce is open.
class Collector {
 public:
  virtual ~Collector() = default;
  /// Collects one call and returns its Work. `in_order`: `ops` are the sends and receives of one
  /// lowered collective (Call::in_order).
  virtual Work collect(std::span<const Op> ops, const CallOptions& options, bool in_order) = 0;
};

/// The front of one group. Pending Works keep it alive after the ProcessGroup is destroyed.
class Core final : public WorkOwner, public std::enable_shared_from_this<Core> {
 public:
  /// Checks the options and makes a group, over a new backend or over the given one. @throws Error.
  /// `list`: of ProcessGroup::reconfigure().
  static ProcessGroup create(const GroupOptions& options, const MemberList* list = nullptr);
  static ProcessGroup create(const GroupOptions& options, std::unique_ptr<Backend> backend);
  /// Makes a group over the caller's backend. May throw std::bad_alloc.
  static ProcessGroup create_checked(const GroupOptions& options, std::unique_ptr<Backend> backend);
  /// Makes a group over a store whose keys no other group uses. An error ends it on all ranks.
  /// `locations`: of a part. `membership`: of a group of a list of members.
  static ProcessGroup create_over(const GroupOptions& options, RankLocations locations = {},
                                  Membership* membership = nullptr);

  /// `choice`: the backend's row in the table, null if the caller made the backend. `locations`:
  /// empty if all ranks are in this process, or the caller made the backend.
  Core(const GroupOptions& options, std::unique_ptr<Backend> backend, const BackendChoice& choice,
       RankLocations locations, TraceMemory traces);
  ~Core() override;

  static Core& of(ProcessGroup& group) { return group.core(); }
  [[noreturn]] static void throw_moved_from();

  /// The event that the caller of a verb waits for.
  enum class Wait {
    nothing,  ///< An async form: the caller gets the Work.
    stream,   ///< A blocking form: on a device the stream waits, not the host. No Work.
    host,     ///< The host waits: the caller calls wait() on the Work, which may be empty.
  };
  /// Issues one call. An error of `prepare` refuses it. `caller`: the function that such an error
  /// names; if empty, it names the operation.
  Work issue(Op& op, const CallOptions& options, Wait wait, Prepare prepare = {},
             std::string_view caller = {});
  /// Posts a send and a receive at once.
  Work issue_pair(std::span<Op, 2> pair, const CallOptions& options, Wait wait);
  /// Launches several checked operations as one async call.
  Work launch(std::span<Op> ops, const CallOptions& options, bool in_order);
  /// Sets the fingerprints of a launch and of its messages.
  static void sign(std::span<Op> ops, Call& call) noexcept;

  std::optional<ProcessGroup> split(int color, int key, const CallOptions& options);
  std::optional<ProcessGroup> subset(std::span<const int> ranks, const CallOptions& options);
  ProcessGroup shrink(std::span<const int> lost, std::chrono::nanoseconds patience);
  void monitored_barrier(const CallOptions& options);
  Registration register_memory(const TensorView& block, const CallOptions& options);
  Memory& registrable_memory() noexcept { return backend_->registrable_memory(); }
  Memory& staging_memory() noexcept { return backend_->staging_memory(); }

  void collected(std::uint64_t token, bool failed) noexcept override;
  void uncollected(const Error& error) noexcept override;
  void callback_threw(const Error& error) noexcept override;
  void abort(std::string_view why) noexcept override;
  /// Breaks the group: every later call throws an error with `cause` in its text. `report`: no
  /// call has thrown the cause yet, so the next call throws the cause itself.
  void break_with(const Error& cause, bool report) noexcept;
  /// Breaks the group, because peers may wait for a call that this rank has no memory to make, and
  /// throws; for the handler around a call, where std::bad_alloc becomes an error. `operation`: of
  /// the error. @throws Error resource_exhausted.
  [[noreturn]] void end_for_lack_of_memory(std::string_view operation);
  /// @throws Error forked in a child. If the group is broken: aborted, or the cause itself if no
  /// call has thrown it yet.
  void check_usable(std::string_view operation) const {
    if (is_unusable()) [[unlikely]]
      throw_unusable(operation);
  }

  /// False also for values outside of the enumerations; no backend gets such values.
  bool supports(Operation kind, DType dtype, ReduceOp::Kind reduce) const noexcept {
    return static_cast<int>(dtype) < dtype_count && static_cast<int>(reduce) < reduce_op_count &&
           backend_->supports(kind, dtype, reduce);
  }

  /// True in a forked child, which cannot destroy what belongs to the backend.
  bool forked() const noexcept { return fork_guard_.forked(); }
  /// As the group was made; for its timeout see timeout().
  const GroupOptions& options() const noexcept { return options_; }
  const Bounds& bounds() const noexcept { return bounds_; }
  // Relaxed: no other data depends on these numbers.
  std::chrono::nanoseconds timeout() const noexcept {
    return timeout_.load(std::memory_order_relaxed);
  }
  void set_timeout(std::chrono::nanoseconds timeout);
  std::uint64_t sequence_number() const noexcept {
    return next_seq_.load(std::memory_order_relaxed);
  }
  std::string transport() const { return backend_->transport(); }
  /// The number of ranks below `rank` on this rank's host. @throws Error unsupported.
  int ranks_on_host_below(int rank) const;
  const std::string& backend_name() const noexcept { return backend_name_; }
  const std::string& backend_reason() const noexcept { return choice_.because; }
  Memory& memory() noexcept { return *memory_; }
  Trace trace() const;

  /// True if an open Coalesce collects the calls of this thread.
  bool collects_here() const noexcept {
    // Relaxed: only this thread sets the value to its id, or resets it.
    return collecting_on.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  /// The open Coalesce and its thread. Only that thread may dereference the pointer.
  std::atomic<Collector*> collector{nullptr};
  std::atomic<std::thread::id> collecting_on{};

 private:
  bool is_unusable() const noexcept {
    return fork_guard_.forked() || broken_.load(std::memory_order_relaxed);
  }
  [[noreturn]] void throw_unusable(std::string_view operation) const;
  Error with_place(const Error& error, std::string_view operation) const noexcept;
  Error first_told(const Error& error) const noexcept;
  /// The cause if the loss of a rank broke the group, in ranks of this group.
  std::optional<Error> lost_rank() const;
  void note_lost_rank() const noexcept;
  /// Logs text(), unless there is no memory for it: what it says is thrown or kept all the same.
  template <typename Text>
  void log(LogLevel level, const Text& text) const noexcept {
    try {
      options_.logger(level, text());
    } catch (const std::bad_alloc&) {
    }
  }
  void check(Op& op, const CallOptions& options, bool supported) const;
  void check_peer(const Op& op, std::string_view verb) const;
  void check_any_peer(const Op& op, std::string_view verb) const;
  /// Throws for a blocking call of a thread whose calls a Coalesce collects.
  [[noreturn]] void throw_collecting(std::string_view verb) const;
  /// Runs check(), and refuses the call on an error.
  void check_numbered(Op& op, const CallOptions& options, const Call& call, bool supported);
  /// Tells the backend that `ops` are refused, and throws `why` with the call's location. `shown`:
  /// the operation that the caller issued.
  [[noreturn]] void refuse(std::span<const Op> ops, const Call& call, const Error& why,
                           const Op& shown);
  /// Runs `prepare`; refuses the call if it throws.
  void prepare_or_refuse(Op& op, const CallOptions& options, bool blocking, Prepare prepare,
                         std::string_view caller);
  /// The timeout of a call: the group's, unless the call has a timeout or a deadline.
  std::chrono::nanoseconds timeout_of(const CallOptions& options) const noexcept {
    const bool limited = options.deadline.is_set() || options.timeout.count() != 0;
    return limited ? options.timeout : timeout();
  }
  Call make_call(const CallOptions& options, bool blocking) const noexcept {
    return {.stream = options.stream,
            .deadline = options.deadline,
            .timeout = timeout_of(options),
            .blocking = blocking,
            .order_fixed = options.order_fixed,
            .name = options.name};
  }
  Call number(std::span<Op> ops, const CallOptions& options, bool blocking, bool in_order);
  Work send(std::span<const Op> ops, const Call& call, const Op& shown, Wait wait);
  Work lower(Op& op, const CallOptions& options, Wait wait);
  void lower_barrier(Op& op);
  /// The trace that records a launch, and the launch's index there.
  std::pair<TraceRing*, std::uint64_t> trace_slot(const Op& shown, const Call& call) noexcept;

  ValueExchange next_exchange(std::string_view what) const;
  std::vector<std::array<std::int64_t, 2>> exchange(std::array<std::int64_t, 2> mine,
                                                    std::string_view what,
                                                    const CallOptions& options);
  /// Tells the other ranks' exchange() that this rank refused the call, and throws.
  [[noreturn]] void refuse_exchange(std::string_view what, const Error& why);
  /// Runs `check` before an exchange(). If it throws, or if the timeout is negative, refuses the
  /// exchange.
  template <typename Check>
  void check_exchange(std::string_view what, const CallOptions& options, const Check& check) {
    const auto why = refusal_of([&] {
      check_timeout(options);
      check();
    });
    if (why) refuse_exchange(what, *why);
  }
  /// The locations of these ranks. `part`: has room for them.
  void take_locations(std::span<const int> ranks, RankLocations& part) const {
    for (const int r : ranks)
      if (!locations_.empty()) part.push_back(locations_[static_cast<std::size_t>(r)]);
  }
  std::vector<int> find_left(Store& store, std::span<const int> lost,
                             std::chrono::nanoseconds patience) const;
  /// A sub-group to be made. Prepared before its ranks agree on it, so that lack of memory refuses
  /// that call: afterwards the others wait for each other's parts.
  struct Part {
    GroupOptions options;
    std::shared_ptr<GroupKeys> keys{};  // options.store.
    std::vector<int> ranks{};
    RankLocations locations{};
    std::unique_ptr<Rendezvous> rendezvous{};
  };
  Part prepare_part(const std::string& name) const;
  /// Makes the group of part.ranks, of which this one is `rank`.
  ProcessGroup make_part(Part part, int rank);

  GroupOptions options_;
  BackendChoice choice_;
  RankLocations locations_;
  std::string backend_name_;
  ForkGuard fork_guard_;
  Bounds bounds_;
  Memory* memory_ = nullptr;

  std::atomic<std::uint64_t> next_seq_{0};
  std::atomic<std::uint64_t> next_pair_{0};  // Index of the next entry in traces_->messages.
  TraceMemory traces_;

  std::mutex pairs_mutex_;
  // Number of messages so far, by (whether this rank sends, peer, tag).
  std::map<std::tuple<bool, int, int>, std::uint64_t> pair_seq_;

  std::atomic<bool> broken_{false};
  std::atomic<bool> told_{false};  // A Work has thrown its error.
  mutable std::mutex cause_mutex_;
  mutable std::optional<Error> cause_;
  mutable bool report_cause_ = false;
  std::atomic<std::chrono::nanoseconds> timeout_;
  std::uint64_t splits_ = 0;
  int shrinks_ = 0;
  // Monitored barriers that failed, and those that passed since the last failure; in their keys.
  int late_barriers_ = 0;
  std::uint64_t barriers_since_ = 0;
  Tensor barrier_byte_{};

  std::unique_ptr<Backend> backend_;  // Last member: destroyed first.
};

}  // namespace tutti::internal

namespace tutti {

inline internal::Core& ProcessGroup::core() const {
  if (core_ == nullptr) [[unlikely]]
    internal::Core::throw_moved_from();
  return *core_;
}

}  // namespace tutti
