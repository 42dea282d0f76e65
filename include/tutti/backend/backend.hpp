#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <tutti/backend/work_state.hpp>
#include <tutti/deadline.hpp>
#include <tutti/log.hpp>
#include <tutti/memory.hpp>
#include <tutti/operation.hpp>
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
  /// knows that. Its lifetime() outlives the backend. Its allocate() refuses a stream that is being
  /// captured, on which the host can wait for no copy. host_memory() by default.
  virtual Memory& staging_memory() noexcept;
};

/// A communicator of the backend's library that the caller has made: for "nccl" an ncclComm_t.
struct AdoptedCommunicator {
  void* communicator = nullptr;
  /// Called once when the group is about to abort it, from any thread: from then on it is gone.
  std::function<void()> aborting{};
};

struct BackendInit {
  std::shared_ptr<Store> store;  ///< Never null; keys already prefixed by the group's name.
  int rank = 0;
  int size = 1;
  std::string name{};  ///< The group's.
  std::string args{};  ///< What follows ':' in GroupOptions::backend.
  Device device{};
  Memory* memory = nullptr;  ///< The embedder's own, or null.
  std::chrono::nanoseconds timeout{};
  Logger logger{};                             ///< Never empty.
  std::optional<AdoptedCommunicator> adopt{};  ///< GroupOptions::adopt.
};

/// One row of the table that backends/meson.build generates.
struct BackendEntry {
  std::string_view name;
  std::string_view summary;  ///< One line for `tutti info`.
  bool (*serves)(Device device) noexcept;
  /// Why it cannot run on this machine, or empty when it can.
  std::string (*unavailable)();
  std::unique_ptr<Backend> (*make)(const BackendInit& init);
  bool one_process = false;            ///< Its ranks are threads of one process.
  std::string (*details)() = nullptr;  ///< More for `tutti info`, in lines: what it would do here.
  bool adopts = false;                 ///< make() knows BackendInit::adopt.
  int (*device_count)() = nullptr;     ///< How many devices beside the host's it finds here.
  /// Whether it serves a device through host memory: that is slow, so only who asks for the backend
  /// by name gets it. Null: no device.
  bool (*stages)(Device device) noexcept = nullptr;
  bool receives_from_any = false;  ///< Its groups support Operation::recv_any.
};

/// The backends in this build, in the order in which "auto" tries them.
std::span<const BackendEntry> backends() noexcept;

/// What "auto" (or "name", "name:args") means for a device, and the reason in words. `one_process`:
/// all ranks are threads of this process, as Store::in_process() tells.
struct BackendChoice {
  const BackendEntry* entry = nullptr;  ///< Never null.
  std::string args{};
  std::string because{};
};
/// @throws Error invalid_argument for an unknown name, unsupported for a known one that is not
///         built, cannot run here or does not serve the device.
BackendChoice choose_backend(std::string_view backend, Device device, bool one_process = true);

/// Every backend this library knows of, built or not.
std::span<const std::string_view> known_backends() noexcept;

}  // namespace tutti
