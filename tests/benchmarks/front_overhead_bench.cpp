// The cost of the front: a synchronous call over an empty backend, trace included, in pairs of lock
// and unlock of a free mutex, measured in the same run. Limits: 5 pairs for all_reduce, broadcast
// and barrier, 10 with listed rows, and no allocation. Prints the 20th percentile of many short
// rounds, because a shared machine disturbs single ones, and exits with 1 if a limit is exceeded.
// The argument multiplies the limits, for sanitizers and busy machines.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string_view>
#include <thread>
#include <vector>

#include <tutti/backend/backend.hpp>
#include <tutti/tutti.hpp>

#include "support/counted_allocations.hpp"

namespace {

class Empty final : public tutti::Backend {
 public:
  bool supports(tutti::Operation, tutti::DType, tutti::ReduceOp::Kind) const noexcept override {
    return true;
  }
  tutti::Memory& memory() noexcept override { return tutti::host_memory(); }
  tutti::Work launch(std::span<const tutti::Op>, const tutti::Call&) override { return {}; }
  void refuse(std::span<const tutti::Op>, const tutti::Call&,
              const tutti::Error&) noexcept override {}
  void abort(std::string_view) noexcept override {}
  std::optional<tutti::Error> failure() const override { return std::nullopt; }
};

struct Result {
  double p20_ns;
  double p50_ns;
  std::uint64_t allocations;
};

template <typename Fn>
Result measure(const Fn& call) {
  constexpr int rounds = 2001;
  constexpr int calls = 200;
  std::vector<double> times;
  times.reserve(rounds);
  for (int i = 0; i < 10 * calls; ++i) call();  // Warm-up.
  tutti::test::begin_counting();
  for (int r = 0; r < rounds; ++r) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
    times.push_back(spent.count() / calls);
  }
  const std::uint64_t allocated = tutti::test::end_counting();
  std::ranges::sort(times);
  return {times[times.size() / 5], times[times.size() / 2], allocated};
}

}  // namespace

int main(int argc, char** argv) {
  const double room = argc > 1 ? std::atof(argv[1]) : 1;
  auto group = tutti::ProcessGroup::create(
      {.store = tutti::make_memory_store(), .rank = 0, .size = 4, .checked = false},
      std::make_unique<Empty>());
  std::vector<float> data(256);
  std::vector<float> whole(1024);
  const std::vector<std::int64_t> rows{256, 256, 256, 256};
  // Starts a thread: single-threaded programs lock without atomic instructions, typical programs do
  // not.
  std::binary_semaphore finished(0);
  const std::jthread second([&] { finished.acquire(); });

  bool good = true;
  const auto report = [&](const char* name, double limit, const auto& call) {
    std::mutex mutex;
    const auto pair = measure([&] { const std::lock_guard lock(mutex); });
    const auto r = measure(call);
    const double pairs = r.p20_ns / pair.p20_ns;
    const bool ok = r.allocations == 0 && (limit == 0 || pairs <= limit * room);
    good = good && ok;
    std::printf("%-24s %5.2f pairs  p20 %6.1f ns  p50 %6.1f ns  %llu allocations%s\n", name, pairs,
                r.p20_ns, r.p50_ns, static_cast<unsigned long long>(r.allocations),
                ok ? "" : "  MISSED");
  };
  report("all_reduce", 5, [&] { group.all_reduce(data); });
  report("broadcast", 5, [&] { group.broadcast(data, 0); });
  report("barrier", 5, [&] { group.barrier(); });
  report("all_gather", 10, [&] { group.all_gather(data, whole); });
  report("all_gather, rows listed", 10, [&] { group.all_gather(data, whole, rows); });
  report("send", 0, [&] { group.send(data, 1); });
  std::printf("%s: %.0f pairs (%.0f with rows) and no allocation per synchronous collective\n",
              good ? "pass" : "FAIL", 5 * room, 10 * room);
  finished.release();
  return good ? 0 : 1;
}
