#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "backend/host_state.hpp"
#include "group.hpp"

namespace tutti::backend::hier {

/// A send or receive within a part of the group. Its functions run on the worker of the whole
/// group.
class PartMessage final : public internal::HostState {
 public:
  /// `op`: with the ranks of the whole group.
  PartMessage(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<WorkState> state,
              std::shared_ptr<Group> group, const Op& op)
      : HostState(std::move(queue)), state_(std::move(state)), group_(std::move(group)), op_(op) {}

  bool done() const noexcept override { return HostState::done() || state_->done(); }
  bool wait_until(Deadline deadline) override;
  std::exception_ptr error() const noexcept override;
  std::shared_ptr<WorkState> then(std::function<void()> next) override;
  std::shared_ptr<WorkState> on_done(std::function<void(const Error*)> f) override;
  bool withdraw(const Error& why) noexcept override { return state_->withdraw(why); }

 private:
  /// Finishes this when the message of the part has ended.
  void follow();

  std::shared_ptr<WorkState> state_;
  std::shared_ptr<Group> group_;
  Op op_;
};

}  // namespace tutti::backend::hier
