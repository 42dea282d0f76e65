#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backend/op.hpp>
#include <tutti/backend/work_state.hpp>
#include <tutti/deadline.hpp>
#include <tutti/memory.hpp>
#include <tutti/registration.hpp>
#include <tutti/store/store.hpp>
#include <tutti/work.hpp>

// The service provider interface (SPI) that a backend implements. docs/adding-a-backend.md walks
// through one.

namespace tutti::internal {
class CallHistory;
}

namespace [[gnu::visibility("default")]] tutti {

/// Parameters of a launch other than its operations.
struct Call {
  /// Number in the group, without gaps. A launch of only sends and receives has a number only if it
  /// is `in_order`.
  std::uint64_t seq = 0;
  /// Hash of the properties that must be equal on all ranks. If ranks differ, the backend reports a
  /// mismatch.
  std::uint64_t fingerprint = 0;
  Stream stream{};      ///< CallOptions::stream; ignored for host memory.
  Deadline deadline{};  ///< May be unset.
  /// See CallOptions::timeout; 0: the deadline alone applies.
  std::chrono::nanoseconds timeout{};
  /// The sends and receives of the launch replace a collective that the backend lacks: they take
  /// effect in the order of seq, like a collective.
  bool in_order = false;
  bool blocking = false;     ///< A host backend runs inline and returns a finished Work.
  bool order_fixed = false;  ///< CallOptions::order_fixed.
  std::string_view name{};   ///< Borrowed until launch() returns.

  /// The earlier of deadline and timeout, for a call that starts to wait now.
  Deadline limit() const noexcept {
    if (deadline.is_set() && timeout == std::chrono::nanoseconds(0)) return deadline;
    const auto own = Deadline::after(timeout);
    return deadline.is_set() && deadline.time() < own.time() ? deadline : own;
  }
};

/// The group of which another one is a part, as `hier` is made of parts. Errors of a part name the
/// whole group and its ranks.
struct WholeGroup {
  std::string name{};              ///< Shown in errors of the part.
  std::shared_ptr<Store> store{};  ///< BackendInit::store of the whole group.
  std::vector<int> ranks{};        ///< Ranks of the whole group, by rank of the part.
  /// The part's calls for call n of the whole group have the numbers from n << part_bits on.
  int part_bits = 0;
  /// The calls of this rank on the whole group, which ranks compare while they wait in any part.
  /// Null: each part compares its own.
  std::shared_ptr<internal::CallHistory> history{};
  /// A part of ranks of several hosts. If these make different calls of the whole group, they wait
  /// in different parts.
  bool between_hosts = false;
};

/// Parameters of a sub-group, for one of its members.
struct SplitInit {
  std::span<const int> ranks;                 ///< The members' ranks in the parent, by new rank.
  int rank = 0;                               ///< This rank's number in the sub-group.
  std::string name{};                         ///< The sub-group's name, unique in the store.
  std::shared_ptr<Store> store;               ///< Keys already prefixed by the name.
  std::shared_ptr<const WholeGroup> whole{};  ///< Set in a part of another group.
};

/// A transport of one group on one rank. ProcessGroup has checked the arguments and numbered the
/// calls. Several threads may call launch(); collectives take effect in order of seq. HostBackend
/// is the base class for host memory.
class Backend {
 public:
  virtual ~Backend();
  /// True if launch() accepts the operation; always the same answer. From any thread; returns at
  /// once. `reduce` counts only for operations that reduce.
  virtual bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept = 0;
  /// True if launch() heeds Op::reproducible; always the same answer. False by default:
  /// ProcessGroup refuses such calls.
  virtual bool reproduces() const noexcept;
  /// Memory for results. Calls accept all arrays on its device.
  virtual Memory& memory() noexcept = 0;
  /// Starts a call. One operation is an ordinary call; several are a coalesced call or a batch of
  /// sends and receives. Returns an empty Work if the call has ended. Keeps neither `ops` nor the
  /// lists of their Rows.
  virtual Work launch(std::span<const Op> ops, const Call& call) = 0;
  /// Reports that this rank refused the call of this number and will not launch it. Peers that wait
  /// in the call get an error with this text, if the backend can end their calls. Never blocks.
  virtual void refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept = 0;
  /// Makes a sub-group over the same connections. Null, the default: the caller makes the sub-group
  /// through the store.
  virtual std::unique_ptr<Backend> split(const SplitInit& init);
  /// Ends every pending call on this rank with an error, and on peers if the backend can. From any
  /// thread.
  virtual void abort(std::string_view why) noexcept = 0;
  /// The error that broke the group; empty while the group is usable.
  virtual std::optional<Error> failure() const = 0;
  /// The transport in words: "tcp/eth0". May be empty.
  virtual std::string transport() const;
  /// The kind of registration that this rank could make of this block; `none` by default. Never
  /// blocks. @throws Error unsupported if the transport registers memory but cannot register this
  /// block now.
  virtual RegistrationKind registrable(const TensorView& block, Stream stream) const;
  /// Registers a block. Called on all ranks together, with equal byte counts and the highest kind
  /// that all ranks can make; never with `none`. The result may be of a lower kind.
  virtual Registration register_memory(const TensorView& block, RegistrationKind kind,
                                       Deadline limit);
  /// The memory that gains most from registration; memory() by default.
  virtual Memory& registrable_memory() noexcept;
  /// Host memory for the fastest copies from and to memory(): pinned if the device supports it. It
  /// may be used after the backend is destroyed. allocate() refuses a captured stream, because the
  /// host cannot wait for a copy on that stream. host_memory() by default.
  virtual Memory& staging_memory() noexcept;
};

}  // namespace tutti
