#pragma once

#include <atomic>
#include <cstdint>

namespace tutti::internal {

/// Detects with one load that this process is a forked child of the process that made the guard.
/// The number of the process is in a page that the kernel clears on fork (MADV_WIPEONFORK,
/// Linux 4.14), and that a handler of libc's fork() clears.
class ForkGuard {
 public:
  ForkGuard();
  bool forked() const noexcept { return page_->load(std::memory_order_relaxed) != mine_; }

 private:
  static std::atomic<std::uint64_t>& page();
  std::atomic<std::uint64_t>* page_;
  std::uint64_t mine_ = 0;
};

}  // namespace tutti::internal
