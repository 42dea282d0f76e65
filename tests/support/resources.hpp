#pragma once

#include <chrono>
#include <cstddef>
#include <ostream>

#include "support/sanitizers.hpp"

namespace tutti::test {

/// The system's figures for this process.
struct Holdings {
  std::size_t descriptors = 0;
  std::size_t threads = 0;
  std::size_t resident_kib = 0;
};
Holdings holdings();

/// The resources of this process that a group may take.
struct Resources {
  std::size_t threads = 0;
  std::size_t descriptors = 0;
  std::size_t mappings = 0;

  static Resources now();
  /// The resources once they have been the same for 40 ms: a thread that has been told to end may
  /// still be there.
  static Resources settled();
  /// Blocks until this process has no more than `before`, for at most `limit`. Returns the last
  /// resources.
  static Resources await(const Resources& before, std::chrono::nanoseconds limit);

  /// These, which any number of mappings fits: for processes in which libraries still set up things
  /// once.
  Resources but_mappings() const noexcept;
  bool operator==(const Resources&) const = default;
  /// True if these are not more than `before`, but for `spare_mappings`.
  bool fit(const Resources& before) const noexcept;
  friend std::ostream& operator<<(std::ostream& out, const Resources& r);

  /// glibc keeps the stacks of threads that have ended, up to 40 MiB: 5 stacks of 8 MiB, each with
  /// its guard page. A fault needs more threads at a time than the calls before it.
  /// AddressSanitizer maps memory whenever it likes.
  static constexpr std::size_t spare_mappings = address_sanitizer ? 10'000 : 10;
};

/// Makes the numbers comparable: one heap for all threads, so that a thread maps no heap of its
/// own. Called before the first thread of the process.
void use_one_heap();

}  // namespace tutti::test
