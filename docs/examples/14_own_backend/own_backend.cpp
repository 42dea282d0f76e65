// A backend and a decorator written outside the library: StoreBackend moves the bytes of a group of
// three ranks, CountsBytes counts them.

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/backend/forwarding_backend.hpp>
#include <tutti/tutti.hpp>

#include "store_backend.hpp"

namespace {

/// Counts the bytes of the input arrays of all calls, sub-groups included.
class CountsBytes final : public tutti::ForwardingBackend {
 public:
  CountsBytes(std::unique_ptr<tutti::Backend> inner, std::atomic<std::size_t>& bytes)
      : ForwardingBackend(std::move(inner)), bytes_(bytes) {}

  tutti::Work launch(std::span<const tutti::Op> ops, const tutti::Call& call) override {
    for (const auto& op : ops) bytes_ += op.in.bytes();
    return inner().launch(ops, call);
  }

  std::unique_ptr<tutti::Backend> split(const tutti::SplitInit& init) override {
    auto part = inner().split(init);
    if (part == nullptr) return nullptr;  // The library then makes the sub-group from the store.
    return std::make_unique<CountsBytes>(std::move(part), bytes_);
  }

 private:
  std::atomic<std::size_t>& bytes_;
};

/// The lines that one rank prints.
using Lines = std::vector<std::string>;

std::string text_of(std::span<const float> values) {
  std::string text;
  for (const float value : values) text += ' ' + std::to_string(static_cast<int>(value));
  return text;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const tutti::Error& error) {
    return error.what();
  }
  return "no error";
}

void run(tutti::ProcessGroup& world, Lines& lines) {
  const auto rank = static_cast<float>(world.rank());
  std::vector<float> sum{rank, 10 * rank};
  world.all_reduce(sum);
  lines.push_back("all_reduce:" + text_of(sum));

  const std::vector<std::int64_t> rows{1, 2, 3};  // The number of rows of each rank.
  const std::vector<float> mine(static_cast<std::size_t>(world.rank()) + 1, rank);
  std::vector<float> all(6);
  world.all_gather_async(mine, all, rows).wait();
  lines.push_back("all_gather_async:" + text_of(all));

  if (auto pair = world.split(world.rank() == 1 ? -1 : 0)) {
    std::array<float, 1> value{rank};
    pair->broadcast(value, 1);
    lines.push_back("broadcast in '" + pair->name() + "':" + text_of(value));
  }

  lines.push_back(error_of([&] { world.broadcast(sum, world.rank() == 1 ? 7 : 0); }));
  lines.push_back(error_of([&] { world.send(sum, 0); }));
  if (world.rank() == 0)
    world.abort("the example ends");
  else
    lines.push_back(error_of([&] { world.barrier(); }));
}

}  // namespace

int main() {
  constexpr int size = 3;
  const auto store = tutti::make_memory_store();
  std::array<std::atomic<std::size_t>, size> bytes{};
  std::array<Lines, size> lines;
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < size; ++rank)
      ranks.emplace_back([&, rank] {
        const auto own = static_cast<std::size_t>(rank);
        auto world = tutti::ProcessGroup::create(
            {.store = store,
             .rank = rank,
             .size = size,
             .decorate =
                 [&](std::unique_ptr<tutti::Backend> inner) {
                   return std::make_unique<CountsBytes>(std::move(inner), bytes[own]);
                 }},
            std::make_unique<StoreBackend>(tutti::make_prefix_store(store, "arrays/"), "world",
                                           rank, size));
        run(world, lines[own]);
      });
  }
  for (std::size_t rank = 0; rank < size; ++rank) {
    std::printf("rank %zu: %zu bytes\n", rank, bytes[rank].load());
    for (const auto& line : lines[rank]) std::printf("  %s\n", line.c_str());
  }
}
