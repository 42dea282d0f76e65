#include "messages.hpp"

#include <utility>

namespace tutti::backend::hier {

bool PartMessage::wait_until(Deadline deadline) {
  return HostState::done() || state_->wait_until(deadline);
}

std::exception_ptr PartMessage::error() const noexcept {
  if (HostState::done()) return HostState::error();
  const auto thrown = state_->error();
  if (thrown == nullptr) return nullptr;
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    try {
      return std::make_exception_ptr(group_->error_of_message(error, op_));
    } catch (...) {
      return thrown;
    }
  } catch (...) {
    return thrown;
  }
}

void PartMessage::follow() {
  if (forked()) return;
  auto self = std::static_pointer_cast<PartMessage>(shared_from_this());
  (void)state_->on_done([self = std::move(self)](const Error*) { self->finish(self->error()); });
}

std::shared_ptr<WorkState> PartMessage::then(std::function<void()> next) {
  auto after = HostState::then(std::move(next));
  follow();
  return after;
}

std::shared_ptr<WorkState> PartMessage::on_done(std::function<void(const Error*)> f) {
  auto after = HostState::on_done(std::move(f));
  follow();
  return after;
}

}  // namespace tutti::backend::hier
