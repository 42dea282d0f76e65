#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/call_options.hpp>
#include <tutti/group_options.hpp>
#include <tutti/registration.hpp>
#include <tutti/rows.hpp>
#include <tutti/tensor.hpp>
#include <tutti/trace.hpp>
#include <tutti/work.hpp>

namespace tutti::internal {
class Core;
}

namespace [[gnu::visibility("default")]] tutti {

/// N ranks that issue the same collectives in the same order. A handle, move-only; what refers to a
/// group (a pending Work, a reducer) keeps it alive. A group that has been moved from throws
/// invalid_argument. Calls of several threads run in one order, which must be equal on all ranks;
/// point-to-point never waits for a collective.
///
/// Every verb has two forms. `verb(...)` on host memory returns when the caller may reuse the
/// buffers; on a device it is ordered on CallOptions::stream and does not block the host.
/// `verb_async(...)` returns a Work. Arguments are checked before a byte leaves (Error
/// invalid_argument, count_overflow, unsupported). A refusal or mismatch is an error on all ranks;
/// if found before data moves, the group stays usable where the backend can end the peers' calls.
/// Other errors break it: docs/errors.md. R_r is rank r's row count, equal everywhere by default.
class ProcessGroup {
 public:
  /// Blocks until all ranks have called it. @throws Error.
  static ProcessGroup create(const GroupOptions& options);
  /// Over a backend of the caller's own; options.backend and options.device must not be set.
  static ProcessGroup create(const GroupOptions& options, std::unique_ptr<Backend> backend);
  /// Makes several ranks of this process, each on its own thread; the result has the order of
  /// `options`. @throws Error: the first that is not a timeout, otherwise the timeout.
  static std::vector<ProcessGroup> create_all(std::span<const GroupOptions> options);
  /// A new handle of this process for reconfigure(): opaque, at most 200 printable bytes, never the
  /// same twice. Does not communicate.
  static std::string new_member();
  /// Collective of `members`, all with the same list: makes a group in which the rank of a member
  /// is the place of its handle, `own`, in the list. Members may be new, or in older groups,
  /// whether these work or not. The program brings the list to them. options.rank and options.size
  /// keep their defaults. A list may be used any number of times: an attempt that fails on a member
  /// is over for all, and members that come later begin the next one. A handle is in one call at a
  /// time. Through the store: one key and W + 4 round trips per member more than create().
  /// @throws Error invalid_argument, before it uses the store, for an empty list, a handle twice,
  /// or `own` not in it; mismatch on both if two members wait for each other at once in different
  /// lists of one GroupOptions::name; timeout, with the missing members' handles; as create().
  static ProcessGroup reconfigure(const GroupOptions& options, std::string_view own,
                                  std::span<const std::string> members);

  ProcessGroup(ProcessGroup&&) noexcept;
  ProcessGroup& operator=(ProcessGroup&&) noexcept;
  /// No collective. Ends the group with its last handle: peers that wait get peer_lost.
  ~ProcessGroup();
  /// Another handle of the same group.
  ProcessGroup share() const;
  int rank() const;  ///< 0 .. size() - 1.
  int size() const;  ///< The number of ranks.
  /// Among the ranks of this host, or container. @throws Error unsupported over a backend of the
  /// caller's own.
  int local_rank() const;
  int local_size() const;           ///< The number of ranks on this host. @throws as local_rank().
  const std::string& name() const;  ///< GroupOptions::name; of a sub-group "world/0.1".
  const std::string& backend() const;         ///< Its name in backends(), or "custom".
  const std::string& backend_reason() const;  ///< Why it was chosen, in words.
  std::string transport() const;              ///< The transport: "tcp/eth0".
  Memory& memory();                           ///< GroupOptions::memory, or else the backend's.
  Memory& registrable_memory();               ///< For register_memory(); "nccl": of ncclMemAlloc.
  /// True if the backend has the operation. The group composes a barrier, gather, scatter or
  /// all_to_all that the backend lacks from other operations.
  bool supports(Operation operation, DType dtype, ReduceOp op = ReduceOp::sum) const;
  /// The timeout of this rank's later calls; peers may have others. @throws Error invalid_argument.
  void set_timeout(std::chrono::nanoseconds timeout);
  std::chrono::nanoseconds timeout() const;  ///< Of calls that set neither timeout nor deadline.
  /// The collectives that this rank has issued, a Coalesce counted as one; equal in every rank.
  std::uint64_t sequence_number() const;

  /// out [...] = op over ranks of in [...]; the one-array form works in place.
  void all_reduce(const TensorView& data, ReduceOp op = ReduceOp::sum,
                  const CallOptions& options = {});
  void all_reduce(const ConstTensorView& in, const TensorView& out, ReduceOp op = ReduceOp::sum,
                  const CallOptions& options = {});  ///< `in` and `out` may be one array.
  /// Returns the reduction of one number of the host. On the wire: as an array of one element.
  template <Element T>
  [[nodiscard]] T all_reduce(T value, ReduceOp op = ReduceOp::sum,
                             const CallOptions& options = {}) {
    all_reduce_on_host(std::span(&value, 1), op, options);
    return value;
  }
  /// Copies root's data [...] to all ranks. Strings of any length: broadcast_bytes() in gather.hpp.
  void broadcast(const TensorView& data, int root, const CallOptions& options = {});
  /// out [...] on `root` = op over ranks of in [...]; other ranks need no `out`.
  void reduce(const ConstTensorView& in, const TensorView& out, int root,
              ReduceOp op = ReduceOp::sum, const CallOptions& options = {});
  /// out [sum R_r, ...] = all ranks' in [R_r, ...]. `in` may be in `out`. See all_gather_rows().
  void all_gather(const ConstTensorView& in, const TensorView& out, Rows rows = {},
                  const CallOptions& options = {});
  /// outs[r] = rank r's array, of `in`'s dtype and count: all_gather() through one scratch array.
  void all_gather(const ConstTensorView& in, std::span<const TensorView> outs,
                  const CallOptions& options = {});
  /// out [R_rank, ...] = this rank's rows of (op over ranks of in [sum R_r, ...]).
  void reduce_scatter(const ConstTensorView& in, const TensorView& out, Rows rows = {},
                      ReduceOp op = ReduceOp::sum, const CallOptions& options = {});
  /// Sends block j of in [sum send_rows, ...] to rank j; out [sum recv_rows, ...] is in rank order.
  void all_to_all(const ConstTensorView& in, const TensorView& out, Rows send_rows = {},
                  Rows recv_rows = {}, const CallOptions& options = {});
  /// ins[r] goes to rank r, outs[r] comes from it; counts may differ. Through two scratch arrays.
  void all_to_all(std::span<const ConstTensorView> ins, std::span<const TensorView> outs,
                  const CallOptions& options = {});
  /// all_gather() with out used on `root` only.
  void gather(const ConstTensorView& in, const TensorView& out, int root, Rows rows = {},
              const CallOptions& options = {});
  /// out [R_rank, ...] = this rank's rows of root's in [sum R_r, ...]; other ranks need no `in`.
  void scatter(const ConstTensorView& in, const TensorView& out, int root, Rows rows = {},
               const CallOptions& options = {});
  /// out = op over ranks 0..rank of in. `op` is not avg.
  void scan(const ConstTensorView& in, const TensorView& out, ReduceOp op = ReduceOp::sum,
            const CallOptions& options = {});
  /// scan() over ranks 0..rank-1. Rank 0 gets the identity of `op`; a custom op leaves its out
  /// unchanged.
  void exclusive_scan(const ConstTensorView& in, const TensorView& out, ReduceOp op = ReduceOp::sum,
                      const CallOptions& options = {});
  void barrier(const CallOptions& options = {});  ///< Blocks the host until all ranks have entered.
  /// A barrier through the store that ends at its deadline with the same error on all ranks, late
  /// ones too: Errc::timeout with the missing ranks. The group stays usable. docs/errors.md.
  void monitored_barrier(const CallOptions& options = {});
  /// May block until the peer receives. Matched in order by (sender, receiver, tag).
  void send(const ConstTensorView& data, int peer, int tag = 0, const CallOptions& options = {});
  /// Returns the sender; peer may be any_peer. recv_async writes the sender to *source (if not
  /// null) before the Work ends; *source must live until then.
  int recv(const TensorView& data, int peer, int tag = 0, const CallOptions& options = {});
  /// send(in, to) and recv(out, from) at once: a ring cannot deadlock. Peers may use send and recv.
  void sendrecv(const ConstTensorView& in, int to, const TensorView& out, int from, int tag = 0,
                const CallOptions& options = {});

  Work all_reduce_async(const TensorView& data, ReduceOp op = ReduceOp::sum,
                        const CallOptions& options = {});  ///< See all_reduce().
  Work all_reduce_async(const ConstTensorView& in, const TensorView& out,
                        ReduceOp op = ReduceOp::sum,
                        const CallOptions& options = {});  ///< See all_reduce().
  /// See broadcast().
  Work broadcast_async(const TensorView& data, int root, const CallOptions& options = {});
  Work reduce_async(const ConstTensorView& in, const TensorView& out, int root,
                    ReduceOp op = ReduceOp::sum,
                    const CallOptions& options = {});  ///< See reduce().
  Work all_gather_async(const ConstTensorView& in, const TensorView& out, Rows rows = {},
                        const CallOptions& options = {});  ///< See all_gather().
  Work all_gather_async(const ConstTensorView& in, std::span<const TensorView> outs,
                        const CallOptions& options = {});  ///< See all_gather().
  Work reduce_scatter_async(const ConstTensorView& in, const TensorView& out, Rows rows = {},
                            ReduceOp op = ReduceOp::sum,
                            const CallOptions& options = {});  ///< See reduce_scatter().
  Work all_to_all_async(const ConstTensorView& in, const TensorView& out, Rows send_rows = {},
                        Rows recv_rows = {},
                        const CallOptions& options = {});  ///< See all_to_all().
  Work all_to_all_async(std::span<const ConstTensorView> ins, std::span<const TensorView> outs,
                        const CallOptions& options = {});  ///< See all_to_all().
  Work gather_async(const ConstTensorView& in, const TensorView& out, int root, Rows rows = {},
                    const CallOptions& options = {});  ///< See gather().
  Work scatter_async(const ConstTensorView& in, const TensorView& out, int root, Rows rows = {},
                     const CallOptions& options = {});  ///< See scatter().
  Work scan_async(const ConstTensorView& in, const TensorView& out, ReduceOp op = ReduceOp::sum,
                  const CallOptions& options = {});  ///< See scan().
  Work exclusive_scan_async(const ConstTensorView& in, const TensorView& out,
                            ReduceOp op = ReduceOp::sum,
                            const CallOptions& options = {});  ///< See exclusive_scan().
  Work barrier_async(const CallOptions& options = {});  ///< Ends when all ranks have entered.
  Work send_async(const ConstTensorView& data, int peer, int tag = 0,
                  const CallOptions& options = {});  ///< See send().
  Work recv_async(const TensorView& data, int peer, int tag = 0, const CallOptions& options = {},
                  int* source = nullptr);  ///< See recv().
  Work sendrecv_async(const ConstTensorView& in, int to, const TensorView& out, int from,
                      int tag = 0, const CallOptions& options = {});  ///< See sendrecv().

  /// Collective. Ranks with equal `color` form a group, ordered by `key`, then by rank; a negative
  /// color gets none. It may outlive this one. On the wire: 16 bytes per rank, within the deadline
  /// of `options`; GroupOptions::timeout limits the making of the group.
  std::optional<ProcessGroup> split(int color, int key = 0, const CallOptions& options = {});
  /// split() by a list of members, the same on all ranks.
  std::optional<ProcessGroup> subset(std::span<const int> ranks, const CallOptions& options = {});
  /// subset() of a list in braces.
  std::optional<ProcessGroup> subset(std::initializer_list<int> ranks,
                                     const CallOptions& options = {}) {
    return subset(std::span(ranks.begin(), ranks.size()), options);
  }

  /// Collective of the ranks that are left: makes a new group of those that call it, in the order
  /// of their ranks here, with the options of this group. Works after this group has broken, too,
  /// and any number of times. A rank in `lost`, or that the cause of the failure names as lost, is
  /// waited for only if it has called; any other rank for `patience`. The list of the first rank
  /// that has one counts. Through the store: one key per rank. As GroupOptions::timeout limits the
  /// making of the group, a rank that dies meanwhile is an error, after which ranks may call again.
  /// `tutti run` ends all ranks with the first one, unless it has --keep-going.
  /// @throws Error peer_lost if the others did not wait for this rank; what create() throws.
  ProcessGroup shrink(std::span<const int> lost = {},
                      std::chrono::nanoseconds patience = std::chrono::seconds(2));

  /// Collective, with equal byte counts: registers a block with the transport; see Registration.
  /// The host waits for all ranks. On the wire: 16 bytes per rank and the transport's exchange.
  /// @throws Error invalid_argument, mismatch, unsupported (also while options.stream is captured).
  Registration register_memory(const TensorView& block, const CallOptions& options = {});

  /// Ends every pending call with Errc::aborted, on peers too if the backend can end their calls.
  void abort(std::string_view why) noexcept;
  /// The last calls of this rank. From any thread, even while calls are pending.
  Trace trace() const;

 private:
  friend class internal::Core;
  explicit ProcessGroup(std::shared_ptr<internal::Core> core) noexcept;
  internal::Core& core() const;  // @throws Error invalid_argument if this has been moved from.
  void all_reduce_on_host(const TensorView& data, ReduceOp op, const CallOptions& options);
  std::shared_ptr<internal::Core> core_;
};

}  // namespace tutti
