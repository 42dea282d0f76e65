#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include <tutti/deadline.hpp>
#include <tutti/error.hpp>

#include "backend/group_names.hpp"
#include "backend/mailbox.hpp"
#include "backend/rendezvous.hpp"
#include "memory/group_memory.hpp"
#include "memory/member.hpp"

namespace tutti::backend::local {

/// What the ranks of one group share. From the threads of all ranks.
class SharedState {
 public:
  SharedState(internal::GroupNames names, int size);

  const memory::GroupMemory& memory() const noexcept { return memory_; }
  /// The sends and receives. Valid as long as this object.
  internal::Mailbox& mailbox() noexcept { return mailbox_; }

  /// Blocks until all ranks have joined. @throws Error invalid_argument when the rank has joined
  /// already; timeout when ranks are missing; the cause if the group has broken or a rank gave up.
  void join(const std::shared_ptr<memory::Member>& member, internal::Rendezvous& rendezvous);

 private:
  void break_with(const Error& cause) noexcept;

  const internal::GroupNames names_;
  const int size_;
  memory::GroupMemory memory_;
  std::mutex mutex_;
  std::condition_variable joined_;
  std::vector<bool> has_joined_;
  std::vector<std::weak_ptr<memory::Member>> members_;  // That have joined.
  internal::Mailbox mailbox_;
};

}  // namespace tutti::backend::local
