#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace tutti::internal::losses {

/// Cuts [0, count) into `threads` contiguous parts whose lengths differ by at most one. Calls
/// f(first, last) for each part that is not empty: the first part on this thread, each other part
/// on a new thread. Returns when all parts have ended. Rethrows the exception of the first part
/// that threw.
template <typename F>
void in_parallel(int threads, std::size_t count, const F& f) {
  const auto parts = std::min(count, static_cast<std::size_t>(std::max(threads, 1)));
  if (parts <= 1) {
    if (count != 0) f(std::size_t{0}, count);
    return;
  }
  std::vector<std::exception_ptr> errors(parts);
  const auto run = [&](std::size_t part) noexcept {
    const auto begin = [&](std::size_t p) {
      return count / parts * p + std::min(p, count % parts);
    };
    try {
      f(begin(part), begin(part + 1));
    } catch (...) {
      errors[part] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;  // Joined on every exit, even if a thread cannot start.
    others.reserve(parts - 1);
    for (std::size_t part = 1; part < parts; ++part) try {
        others.emplace_back(run, part);
      } catch (const std::system_error&) {
        run(part);  // No thread is left; this one computes, because peers wait for this rank.
      }
    run(0);
  }
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace tutti::internal::losses
