#pragma once

#include <memory>

#include <tutti/call_options.hpp>
#include <tutti/work.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// Collectives over fixed arrays, collected once and launched any number of times:
///
///     Coalesce list(group);
///     list.add(group.all_reduce_async(a));
///     list.add(group.all_gather_async(b, c));
///     Prepared step = list.prepare();
///     for (...) step.launch({.stream = s}).wait();
///
/// Arguments are checked when the calls are collected; a launch repeats nothing of it. On the wire
/// and in the trace each launch is what Coalesce::launch() of the same calls is: one call of the
/// group, with one number. Each rank makes one list of these calls, and all ranks launch it
/// together each time: a mismatch is a launch beside a call that is not prepared, and the first or
/// second launch of a list beside another one of an equal list. The backend may keep what it makes
/// of the list: "nccl" a CUDA graph, from the second launch on.
///
/// The arrays, and the contexts of custom reductions, must live as long as the list; row counts are
/// copied. Move-only, keeps its groups alive, and is used by one thread at a time. The destructor
/// does not communicate and does not wait: a Work of a launch may outlive the list.
class Prepared {
 public:
  Prepared(Prepared&&) noexcept;
  Prepared& operator=(Prepared&&) noexcept;
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  ~Prepared();

  /// Launches the list on each of its groups and returns one Work for all. The stream, the deadline
  /// and the timeout are those of `options`, and the timeout counts from here; the other options
  /// are those of the first call collected on the group. A launch may begin before the one before
  /// it has ended: the collectives of a group run in order. @throws Error as async calls;
  /// invalid_argument after a move, and while a Coalesce of this thread collects on the group.
  Work launch(const CallOptions& options = {});

 private:
  friend class Coalesce;
  struct Impl;
  explicit Prepared(std::unique_ptr<Impl> impl) noexcept;

  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
