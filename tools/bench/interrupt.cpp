#include "bench/interrupt.hpp"

namespace tutti::tool {

bool Interrupt::ask() noexcept {
  const std::lock_guard lock(mutex_);
  asked_.store(true, std::memory_order_relaxed);
  return group_ != nullptr;
}

bool Interrupt::abort(std::string_view why) noexcept {
  const std::lock_guard lock(mutex_);
  asked_.store(true, std::memory_order_relaxed);
  if (group_ == nullptr) return false;
  group_->abort(why);
  return true;
}

Interrupt::Scope::Scope(Interrupt& interrupt, ProcessGroup& group) : interrupt_(interrupt) {
  const std::lock_guard lock(interrupt_.mutex_);
  interrupt_.group_ = &group;
}

Interrupt::Scope::~Scope() {
  const std::lock_guard lock(interrupt_.mutex_);
  interrupt_.group_ = nullptr;
}

}  // namespace tutti::tool
