#pragma once

#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <new>

#include <gtest/gtest.h>

#include <tutti/error.hpp>

#include "support/processes.hpp"

// Losses in processes with limited address space.

namespace tutti::test {

inline constexpr std::size_t megabyte = std::size_t{1} << 20;

/// Limits the address space of this process to `bytes` more.
inline void limit_memory(std::size_t bytes) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * 4096 + bytes;
  const rlimit both{limit, limit};
  if (pages == 0 || setrlimit(RLIMIT_AS, &both) != 0) std::exit(3);
}

/// Exit status of the child: 0 if `loss` succeeded within the limit.
template <typename Loss, typename Batch>
void run(Loss loss, const Batch& batch, std::size_t bytes) {
  limit_memory(bytes);
  try {
    std::exit(loss(batch).loss > 0 ? 0 : 1);
  } catch (const std::bad_alloc&) {
  } catch (const Error&) {
  }
  std::exit(2);
}

class LossMemory : public testing::Test {
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers need address space of their own";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    GTEST_SKIP() << "sanitizers need address space of their own";
#endif
#endif
    if (is_emulated()) GTEST_SKIP() << "the emulator applies no limit of memory";
  }
};

}  // namespace tutti::test
