// A user's program, independent of the launcher. Every rank checks its numbers.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <vector>

#include <tutti/tutti.hpp>

namespace {

void expect(const std::vector<std::int64_t>& got, const std::vector<std::int64_t>& expected,
            const char* what) {
  if (got == expected) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

}  // namespace

/// The first argument names another backend than gloo.
int main(int argc, char** argv) try {
  auto group = tutti::init(
      {.group = {.backend = argc > 1 ? argv[1] : "gloo", .timeout = std::chrono::seconds(60)}});
  const std::int64_t rank = group.rank();
  const std::int64_t size = group.size();
  const auto ranks = static_cast<std::size_t>(size);

  std::vector<std::int64_t> sum(1000, rank + 1);
  group.all_reduce(sum);
  expect(sum, std::vector<std::int64_t>(1000, size * (size + 1) / 2), "all_reduce");

  const std::vector<std::int64_t> mine{rank};
  std::vector<std::int64_t> order(ranks);
  group.all_gather(mine, order);
  std::vector<std::int64_t> ascending(ranks);
  std::iota(ascending.begin(), ascending.end(), 0);
  expect(order, ascending, "all_gather");

  // Even and odd ranks in separate groups, in reverse order.
  auto half = group.split(static_cast<int>(rank % 2), -group.rank());
  std::int64_t expected = 0;
  for (std::int64_t other = rank % 2; other < size; other += 2) expected += other;
  std::vector<std::int64_t> part{rank};
  half->all_reduce(part);
  expect(part, {expected}, "all_reduce of a half");
  expect({half->rank()}, {(size - 1 - rank) / 2}, "rank in a half");

  group.barrier();
  std::printf("rank %lld of %lld: ok\n", static_cast<long long>(rank),
              static_cast<long long>(size));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
