#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "group.hpp"
#include "group/host_state.hpp"

namespace tutti::backend::gloo {

class SelfState;

/// Messages of a rank to itself. The second of the two calls copies.
class SelfBox {
 public:
  void post(const std::shared_ptr<SelfState>& state) noexcept;
  /// True if it was still here.
  bool withdraw(const SelfState& state) noexcept;
  /// Ends all that is here.
  void fail(const Error& why) noexcept;

 private:
  std::mutex mutex_;
  std::multimap<std::uint64_t, std::shared_ptr<SelfState>> waiting_;  // By slot; of one side only.
};

/// A send or receive whose peer is its own rank. Its deadline is checked in done() and
/// wait_until() only.
class SelfState final : public internal::HostState {
 public:
  SelfState(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<const Group> group,
            std::shared_ptr<SelfBox> box, const Op& op, Deadline limit)
      : HostState(std::move(queue)),
        group_(std::move(group)),
        box_(std::move(box)),
        op_(op),
        slot_(group_->pair_slot(op)),
        limit_(limit) {}

  bool done() const noexcept override;
  bool wait_until(Deadline deadline) override;
  const Op& op() const noexcept { return op_; }
  std::uint64_t slot() const noexcept { return slot_; }

 private:
  void expire() noexcept;

  std::shared_ptr<const Group> group_;
  std::shared_ptr<SelfBox> box_;
  Op op_;
  std::uint64_t slot_;
  Deadline limit_;
};

}  // namespace tutti::backend::gloo
