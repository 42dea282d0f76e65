#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "backends/nccl/double/bare_rank.hpp"

namespace tutti::test::nccl_double {

inline constexpr std::size_t count = BareRank::count;
inline constexpr std::size_t bytes = count * sizeof(float);

inline bool all_are(const std::vector<float>& values, float want) {
  return std::ranges::all_of(values, [&](float value) { return value == want; });
}

/// Calls that break a rule of the double.
class Wrong : public Double {
 protected:
  using Call = std::function<void(BareRank& at, float* data)>;

  /// Polls the stream until it is empty or the double has had time to detect a deadlock.
  static void wait_in_vain(const BareRank& at) {
    const auto limit = std::chrono::steady_clock::now() + 300ms;
    cudaEvent_t end = nullptr;
    cuda().event_create_with_flags(&end, cudaEventDisableTiming);
    cuda().event_record(end, at.stream);
    while (cuda().event_query(end) != cudaSuccess && std::chrono::steady_clock::now() < limit)
      std::this_thread::yield();
    cuda().event_destroy(end);
    cuda().get_last_error();
  }

  /// Every rank makes its call; the results are ignored.
  static void each(int size, const Call& call) {
    on_bare_ranks(size, [&](BareRank& at) {
      float* data = at.make(1, static_cast<std::size_t>(size) * count);
      call(at, data);
      at.settle();
      wait_in_vain(at);
    });
  }
};

}  // namespace tutti::test::nccl_double
