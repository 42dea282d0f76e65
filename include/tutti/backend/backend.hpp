#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <tutti/backend/op.hpp>
#include <tutti/backend/work_state.hpp>
#include <tutti/deadline.hpp>
#include <tutti/memory.hpp>
#include <tutti/registration.hpp>
#include <tutti/store/store.hpp>
#include <tutti/work.hpp>

// The service provider interface: what a new backend writes. docs/adding-a-backend.md walks
// through one.

namespace [[gnu::visibility("default")]] tutti {

/// What a launch carries beside its operations.
struct Call {
  /// Its number in the group, without gaps. A launch of point-to-point alone has one only when
  /// it is `in_order`.
  std::uint64_t seq = 0;
  std::uint64_t fingerprint = 0;  ///< Equal on all ranks or the program is wrong.
  Stream stream{};
  Deadline deadline{};  ///< May be not set.
  /// From the moment the call starts to wait; 0: there is the deadline alone.
  std::chrono::nanoseconds timeout{};
  /// A batch of point-to-point that takes effect in the order of seq, like a collective.
  bool in_order = false;
  bool blocking = false;     ///< A host backend runs inline and returns a finished Work.
  bool order_fixed = false;  ///< CallOptions::order_fixed.
  std::string_view name{};   ///< Borrowed until launch() returns.

  /// The earlier of both, for a call that starts to wait now.
  Deadline limit() const noexcept {
    if (deadline.is_set() && timeout == std::chrono::nanoseconds(0)) return deadline;
    const auto own = Deadline::after(timeout);
    return deadline.is_set() && deadline.time() < own.time() ? deadline : own;
  }
};

/// The members of a sub-group, on one of them.
struct SplitInit {
  std::span<const int> ranks;    ///< Members, by parent rank, in the new order.
  int rank = 0;                  ///< This rank's place in it.
  std::string name{};            ///< The sub-group's name, unique under the store.
  std::shared_ptr<Store> store;  ///< Keys already prefixed by the name.
};

/// A transport of one group on one rank. ProcessGroup has checked the arguments and numbered the
/// calls; launch() may be called from several threads, collectives take effect in order of seq.
class Backend {
 public:
  virtual ~Backend();
  virtual bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept = 0;
  /// The memory it likes best; arrays on memory().device() are always accepted.
  virtual Memory& memory() noexcept = 0;
  /// One element is an ordinary call; several are a coalesced call or a batch of point-to-point.
  /// Does not keep `ops`, nor what their Rows point to.
  virtual Work launch(std::span<const Op> ops, const Call& call) = 0;
  /// This rank refused the call that has this number: nothing will be launched for it. Peers
  /// that wait for it get an error with this text where the backend can tell them. Never blocks.
  virtual void refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept = 0;
  /// A sub-group over the same connections, or null: then one is made from the store.
  virtual std::unique_ptr<Backend> split(const SplitInit& init);
  /// Ends every pending call on this rank with an error, and peers' where it can. From any thread.
  virtual void abort(std::string_view why) noexcept = 0;
  /// The first cause once the group is broken.
  virtual std::optional<Error> failure() const = 0;
  /// What carries the bytes, in words: "tcp/eth0". Empty when there is nothing to say.
  virtual std::string transport() const;
  /// How it could register this block, as far as this rank can tell; `none` by default. Never
  /// blocks. @throws Error unsupported where it should but cannot.
  virtual RegistrationKind registrable(const TensorView& block, Stream stream) const;
  /// On all ranks at once, with equal byte counts and the kind that all of them could; not called
  /// for `none`. May turn out to be less.
  virtual Registration register_memory(const TensorView& block, RegistrationKind kind,
                                       Deadline limit);
  /// The memory whose blocks it registers best; memory() by default.
  virtual Memory& registrable_memory() noexcept;
  /// Host memory for copies from and to memory(), where they are fastest: pinned, if the device
  /// knows that. Gone with the backend. Its allocate() refuses a stream that is being captured, on
  /// which the host can wait for no copy. host_memory() by default.
  virtual Memory& staging_memory() noexcept;
};

}  // namespace tutti
