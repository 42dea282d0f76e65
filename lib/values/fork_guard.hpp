#pragma once

#include <atomic>
#include <cstdint>

namespace tutti::internal {

/// Tells a forked child from the process that made a group, at the price of one load: the number
/// lives on a page that the kernel wipes on fork (MADV_WIPEONFORK, Linux 4.14).
class ForkGuard {
 public:
  ForkGuard();
  bool forked() const noexcept { return page_->load(std::memory_order_relaxed) != mine_; }

 private:
  static std::atomic<std::uint64_t>& page();
  std::atomic<std::uint64_t>* page_;
  std::uint64_t mine_;
};

}  // namespace tutti::internal
