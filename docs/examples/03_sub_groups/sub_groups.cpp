// Six ranks form 2 pipelines of 3 stages: groups inside a group, with a reduction in each.

#include <array>
#include <cstdio>
#include <optional>
#include <thread>
#include <vector>

#include <tutti/tutti.hpp>

namespace {

void print_line(int me, std::optional<tutti::ProcessGroup>& group, int sum) {
  if (group)
    std::printf("  world rank %d: rank %d of %d in '%s', sum %d\n", me, group->rank(),
                group->size(), group->name().c_str(), sum);
  else
    std::printf("  world rank %d: not a member\n", me);
}

/// Adds the world ranks of a group's members. Every rank prints in its turn.
void show(const char* what, tutti::ProcessGroup& world, std::optional<tutti::ProcessGroup>& group) {
  std::array<int, 1> sum{world.rank()};
  if (group) group->all_reduce(sum);
  if (world.rank() == 0) std::printf("%s\n", what);
  for (int turn = 0; turn < world.size(); ++turn) {
    if (turn == world.rank()) print_line(world.rank(), group, sum[0]);
    world.barrier();
  }
}

void run(tutti::ProcessGroup& world) {
  // Ranks of equal color form a group, ordered by key: here the world's last rank comes first.
  auto pipeline = world.split(world.rank() / 3, -world.rank());
  show("split by pipeline, keys reversed", world, pipeline);

  // A sub-group of a sub-group. A negative color gets no group.
  auto ends = pipeline->split(pipeline->rank() == 1 ? -1 : 0);
  show("the two ends of each pipeline", world, ends);

  const std::array corners{5, 0};  // Ranks of the world, in the order of their new ranks.
  auto corner = world.subset(corners);
  show("a subset, in the order of its list", world, corner);
}

}  // namespace

int main() {
  constexpr int size = 6;
  const auto store = tutti::make_memory_store();
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([=] {
      auto world = tutti::ProcessGroup::create(
          {.backend = "local", .store = store, .rank = rank, .size = size});
      run(world);
    });
}
