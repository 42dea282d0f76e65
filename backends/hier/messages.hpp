#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/host_state.hpp"
#include "group.hpp"

namespace tutti::backend::hier {

/// The part of a group that carries a message, for messages that outlive it.
struct MessagePart {
  std::shared_ptr<Group> group;
  std::string name;
  std::vector<int> ranks;

  /// The error of the whole group for an error of the part; breaks the group if it broke the part.
  Error of_group(const Error& error) const;
};

/// A send or receive within a part of the group. Its functions run on the worker of the whole
/// group.
class PartMessage final : public internal::HostState {
 public:
  PartMessage(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<WorkState> state,
              std::shared_ptr<const MessagePart> part)
      : HostState(std::move(queue)), state_(std::move(state)), part_(std::move(part)) {}

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
  std::shared_ptr<const MessagePart> part_;
};

}  // namespace tutti::backend::hier
