#pragma once

#include <initializer_list>
#include <memory>
#include <span>

#include <tutti/process_group.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// Collects async calls of one thread on one or several groups and sends them as one call per
/// group:
///
///     Coalesce together({&world, &tensor_parallel});
///     together.add(world.all_reduce_async(a));
///     together.add(tensor_parallel.all_gather_async(b, c));
///     together.launch().wait();
///
/// Calls of other threads on these groups are not collected. A Work of a collected call that is
/// kept ends with the launch, too; waiting for it before launch() is an Error. Blocking verbs are
/// refused while collecting. The CallOptions of a group's first call apply to all its collected
/// calls, and order_fixed does if any call has it; reproducible is each call's own. The timeout
/// counts from launch().
///
/// Destruction without launch() sends nothing and breaks the groups that had calls:
/// their next call throws. The destructor does not communicate.
class Coalesce {
 public:
  /// Begins to collect. @throws Error not_initialized for a null group, invalid_argument if another
  /// Coalesce collects on one of them.
  explicit Coalesce(std::span<ProcessGroup* const> groups);
  explicit Coalesce(std::initializer_list<ProcessGroup*> groups)
      : Coalesce(std::span(groups.begin(), groups.size())) {}
  explicit Coalesce(ProcessGroup& group) : Coalesce({&group}) {}
  Coalesce(const Coalesce&) = delete;
  Coalesce& operator=(const Coalesce&) = delete;
  ~Coalesce();

  /// Takes the Work of a collected call, which ends with the launch. @throws Error invalid_argument
  /// for another Work, whose group it aborts unless the call has ended.
  void add(Work collected);
  /// Sends the collected calls and returns one Work for all. Call it once.
  Work launch();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
