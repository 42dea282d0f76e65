#include "shared_state.hpp"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "values/fail.hpp"
#include "values/group_errors.hpp"

namespace tutti::backend::local {
namespace {

constexpr std::chrono::milliseconds pause_of_looks{20};

}  // namespace

SharedState::SharedState(internal::GroupNames names, int size)
    : names_(std::move(names)),
      size_(size),
      memory_(size),
      has_joined_(static_cast<std::size_t>(size)),
      mailbox_(names_, size, [this](const Error& cause) { break_with(cause); }) {
  memory_.allocate();
  members_.reserve(has_joined_.size());
}

void SharedState::join(const std::shared_ptr<memory::Member>& member,
                       internal::Rendezvous& rendezvous) {
  std::unique_lock lock(mutex_);
  const auto rank = static_cast<std::size_t>(member->rank());
  if (has_joined_[rank])
    internal::failf(Errc::invalid_argument,
                    "group '{}': rank {} has already joined; every rank joins once", names_.group(),
                    names_(member->rank()));
  has_joined_[rank] = true;
  members_.push_back(member);
  joined_.notify_all();
  const auto is_complete = [&] { return std::ssize(members_) == size_ || member->is_broken(); };
  const auto limit = rendezvous.limit();
  while (!joined_.wait_for(lock, pause_of_looks, is_complete) && !limit.expired()) {
    lock.unlock();
    rendezvous.check();
    lock.lock();
  }
  if (member->is_broken()) throw Error(member->cause());
  if (std::ssize(members_) == size_) return;
  std::vector<int> absent;
  for (int r = 0; r < size_; ++r)
    if (!has_joined_[static_cast<std::size_t>(r)]) absent.push_back(names_(r));
  const auto cause = member->fail(
      Error(Errc::timeout,
            fmt::format("group '{}': {} of {} ranks joined; missing: {}", names_.group(),
                        members_.size(), size_, internal::list_ranks(absent)),
            {.rank = absent.front(), .missing = absent}));
  joined_.notify_all();
  throw Error(cause);
}

/// A message breaks the group for all ranks, so any member may do it.
void SharedState::break_with(const Error& cause) noexcept {
  std::shared_ptr<memory::Member> member;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < members_.size() && member == nullptr; ++i)
      member = members_[i].lock();
  }
  if (member != nullptr) (void)member->fail(cause);
}

}  // namespace tutti::backend::local
