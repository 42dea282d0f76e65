// What the front costs: a synchronous call over a backend that does nothing, trace included.
// Target: at most 25 ns and no allocation (docs/design/0002-core.md). Prints the 20th percentile
// of many short rounds, because a shared machine disturbs single ones, and ends with 1 when it
// misses the target.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string_view>
#include <vector>

#include <tutti/tutti.hpp>

namespace {

std::atomic<long> allocations{0};

}  // namespace

// Not inlined: GCC would see malloc() and free() on the two sides and call them mismatched.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* data = std::malloc(bytes)) return data;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* data) noexcept {
  std::free(data);
}
[[gnu::noinline]] void operator delete(void* data, std::size_t) noexcept {
  std::free(data);
}

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
  long allocations;
};

template <typename Fn>
Result measure(const Fn& call) {
  constexpr int rounds = 2001;
  constexpr int calls = 200;
  std::vector<double> times;
  times.reserve(rounds);
  for (int i = 0; i < 10 * calls; ++i) call();  // Warm.
  const long before = allocations.load();
  for (int r = 0; r < rounds; ++r) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
    times.push_back(spent.count() / calls);
  }
  const long allocated = allocations.load() - before;
  std::ranges::sort(times);
  return {times[times.size() / 5], times[times.size() / 2], allocated};
}

}  // namespace

int main(int argc, char** argv) {
  // A slow machine, or a sanitizer, can be given more room.
  const double limit_ns = argc > 1 ? std::atof(argv[1]) : 25.0;
  auto group = tutti::ProcessGroup::create(
      {.store = tutti::make_memory_store(), .rank = 0, .size = 4, .checked = false},
      std::make_unique<Empty>());
  std::vector<float> data(256);
  std::vector<float> whole(1024);
  const std::vector<std::int64_t> rows{256, 256, 256, 256};

  bool good = true;
  const auto report = [&](const char* name, const Result& r, bool limited) {
    const bool ok = r.allocations == 0 && (!limited || r.p20_ns <= limit_ns);
    good = good && ok;
    std::printf("%-34s p20 %6.1f ns  p50 %6.1f ns  %ld allocations%s\n", name, r.p20_ns, r.p50_ns,
                r.allocations, ok ? "" : "  MISSED");
  };
  report("all_reduce", measure([&] { group.all_reduce(data); }), true);
  report("broadcast", measure([&] { group.broadcast(data, 0); }), true);
  report("all_gather", measure([&] { group.all_gather(data, whole); }), true);
  report("all_gather, rows listed", measure([&] { group.all_gather(data, whole, rows); }), false);
  report("barrier", measure([&] { group.barrier(); }), true);
  report("send", measure([&] { group.send(data, 1); }), false);
  std::printf("%s: at most %.0f ns and no allocation per synchronous collective\n",
              good ? "pass" : "FAIL", limit_ns);
  return good ? 0 : 1;
}
