#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "rank.hpp"

// Many small calls and many groups: whether a result is wrong, and whether memory grows.

namespace tutti::gpu {

struct SoakOptions {
  std::int64_t calls = 1'000'000;  ///< all_reduces of 8 bytes.
  std::int64_t block = 1000;       ///< Of which the last result is compared.
  int groups = 200;                ///< Made, used once, and ended.
  std::chrono::nanoseconds limit = std::chrono::minutes(1);  ///< Two thirds of it for the calls.
  std::int64_t most_growth = 64 << 20;                       ///< Bytes.
};

/// Bytes that are in use: of this process, and of the device by all processes.
struct MemoryInUse {
  std::int64_t resident = 0;
  std::int64_t device = 0;
};
std::int64_t resident_bytes();

/// On one rank.
struct SoakResult {
  std::int64_t calls = 0;
  int groups = 0;
  std::int64_t wrong = 0;  ///< Of the results that were compared.
  MemoryInUse growth{};    ///< After the first block of calls and the first groups.
};

/// Called by all ranks. The end of the time ends it early on all ranks at once. @throws Error.
SoakResult soak(const Rank& here, const SoakOptions& options,
                const std::function<MemoryInUse()>& memory);

/// The fault of a result; empty if there is none.
std::string fault_of(const SoakResult& result, const SoakOptions& options);
/// "5000 of 1000000 calls of 8 bytes, ...".
std::string to_text(const SoakResult& result, const SoakOptions& options);

}  // namespace tutti::gpu
