#include "self.hpp"

#include <cstring>
#include <utility>

namespace tutti::backend::gloo {

void SelfBox::post(const std::shared_ptr<SelfState>& state) noexcept {
  std::shared_ptr<SelfState> other;
  {
    const std::lock_guard lock(mutex_);
    const auto it = waiting_.find(state->slot());  // Of equal ones the oldest.
    if (it == waiting_.end() || it->second->op().kind == state->op().kind) {
      waiting_.emplace(state->slot(), state);
      return;
    }
    other = std::move(it->second);
    waiting_.erase(it);
  }
  const auto& send = state->op().kind == Operation::send ? state->op() : other->op();
  const auto& recv = state->op().kind == Operation::send ? other->op() : state->op();
  if (const auto bytes = send.in.bytes(); bytes != 0 && recv.out.data != send.in.data)
    std::memmove(recv.out.data, send.in.data, bytes);
  other->finish(nullptr);
  state->finish(nullptr);
}

bool SelfBox::withdraw(const SelfState& state) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto [it, end] = waiting_.equal_range(state.slot()); it != end; ++it) {
    if (it->second.get() != &state) continue;
    waiting_.erase(it);
    return true;
  }
  return false;
}

void SelfBox::fail(const Error& why) noexcept {
  std::multimap<std::uint64_t, std::shared_ptr<SelfState>> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(waiting_);
  }
  for (const auto& [slot, state] : ended) state->finish(std::make_exception_ptr(why));
}

bool SelfState::done() const noexcept {
  if (!HostState::done() && !forked() && limit_.expired()) const_cast<SelfState*>(this)->expire();
  return HostState::done();
}

bool SelfState::wait_until(Deadline deadline) {
  if (HostState::wait_until(deadline.time() < limit_.time() ? deadline : limit_)) return true;
  if (!limit_.expired()) return false;
  expire();
  return HostState::wait_until(Deadline::none());  // If it was matched, the copy is under way.
}

void SelfState::expire() noexcept {
  const auto self = box_->withdraw(*this);
  if (!self) return;
  const Trouble late(Trouble::Kind::late, group_->mesh_rank(op_.peer));
  finish(std::make_exception_ptr(group_->failed(late, {&op_, 1}, {})));
}

}  // namespace tutti::backend::gloo
