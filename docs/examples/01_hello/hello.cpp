// Four ranks, threads of this process, form a group and print a line in rank order.

#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include <tutti/tutti.hpp>

namespace {

constexpr int size = 4;

void say_hello(tutti::ProcessGroup& group) {
  for (int turn = 0; turn < group.size(); ++turn) {
    if (turn == group.rank())
      std::printf("hello from rank %d of %d on backend %s, group '%s'\n", group.rank(),
                  group.size(), group.backend().c_str(), group.name().c_str());
    group.barrier();  // No rank begins the next turn before this one is over.
  }
}

void run_rank(int rank, const std::shared_ptr<tutti::Store>& store) {
  auto group =
      tutti::ProcessGroup::create({.backend = "local", .store = store, .rank = rank, .size = size});
  say_hello(group);
}

}  // namespace

int main() {
  std::printf("tutti %s\n", tutti::library_version_string().data());
  const auto store = tutti::make_memory_store();  // Rendezvous of the ranks.
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back(run_rank, rank, store);
}
