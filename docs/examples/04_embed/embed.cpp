// A framework embeds tutti with its own allocator, store, logger, launcher and stream.

#include <cstdio>
#include <thread>
#include <vector>

#include "trainer.hpp"

namespace {

constexpr int size = 3;
constexpr int steps = 10;

struct Rank {
  framework::Journal journal{};
  int stream = 0;  // The framework's queue; its address is the handle. Host memory ignores it.
  float mean = 0;
};

}  // namespace

int main() {
  framework::Arena arena(std::size_t{1} << 20);
  const auto store = std::make_shared<framework::KeyValueService>();
  std::vector<Rank> ranks(size);
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < size; ++r)
      threads.emplace_back([&, r] {
        auto& rank = ranks[static_cast<std::size_t>(r)];
        framework::Trainer trainer({.arena = &arena,
                                    .store = store,
                                    .logger = rank.journal.logger(),
                                    .scheduler = std::make_shared<framework::Scheduler>(r, size),
                                    .stream = {&rank.stream}});
        for (int i = 0; i < steps; ++i) rank.mean = trainer.step();
      });
  }
  for (const auto& rank : ranks) {
    for (const auto& line : rank.journal.lines()) std::printf("log: %s\n", line.c_str());
    std::printf("mean of the ranks after %d steps: %g\n", steps, static_cast<double>(rank.mean));
  }
  std::printf("tensors from the framework's arena: %lld\n",
              static_cast<long long>(arena.allocations()));
}
