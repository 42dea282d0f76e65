#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "levels.hpp"
#include "values/scratch.hpp"

namespace tutti::backend::hier {

class Chunks;

/// The collectives of one call. The first step of each is a collective of all ranks of a host, in
/// which different calls on one host are found before data moves.
class Collectives {
 public:
  /// `call` has a deadline and no timeout.
  Collectives(Levels& levels, const Call& call, internal::Scratch& scratch,
              internal::Scratch& wide_scratch)
      : levels_(levels),
        topology_(levels.topology),
        call_(call),
        scratch_(scratch),
        wide_scratch_(wide_scratch) {}
  /// Waits for what is in flight.
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  /// The most calls of an inner group or a lane that run(op) makes; equal on all ranks.
  std::size_t parts_of(const Op& op) const;
  /// @throws Error of a part of the group.
  void run(const Op& op);

 private:
  bool gains_nothing(const Op& op) const;
  void run_flat(const Op& op);
  void barrier();
  void reduce(const Op& op);
  void reduce_scatter(const Op& op);
  /// An average of f16 is made of f32 until it has been divided: the sum of a host may be infinite
  /// although the average is not, and the average is rounded once, as over other backends.
  static bool averages_halves(const Op& op);
  static Op in_float(const Op& op);  ///< The same operation on f32.
  void average_halves(const Op& op);
  void broadcast(const Op& op);
  void all_gather(const Op& op);

  Op inner_rows(Operation kind, const Chunks& chunks, std::size_t chunk);
  void inner(const Op& op) { levels_.inner->run(op, call_); }
  void inner_barrier();
  void start_lane(const Op& op);
  void wait_lane();  ///< For the oldest call of start_lane().
  bool in_lane(int lanes) const { return topology_.place() < lanes; }

  Levels& levels_;
  const Topology& topology_;
  const Call& call_;
  internal::Scratch& scratch_;
  internal::Scratch& wide_scratch_;  // Of average_halves().
  std::deque<std::shared_ptr<WorkState>> in_flight_;
  std::size_t started_ = 0;  // Calls of start_lane(), equal on all ranks of the lane.
  std::vector<std::int64_t> rows_;
};

}  // namespace tutti::backend::hier
