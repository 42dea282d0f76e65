// Three ranks reduce a vector and a table, then make different calls, and continue.

#include <cstdio>
#include <span>
#include <thread>
#include <vector>

#include <tutti/tutti.hpp>

namespace {

using tutti::ReduceOp;

void print(const char* what, std::span<const float> values) {
  std::printf("%s", what);
  for (const float value : values) std::printf(" %g", static_cast<double>(value));
  std::printf("\n");
}

void reduce(tutti::ProcessGroup& group) {
  const bool first = group.rank() == 0;  // All ranks get the same result; one prints it.
  const auto r = static_cast<float>(group.rank());

  std::vector<float> x{r, 10 * r, 100};  // 0 0 100, 1 10 100 and 2 20 100.
  group.all_reduce(x);                   // In place, with sum.
  if (first) print("sum of a vector, in place:     ", x);

  const std::vector<float> in{r, 10 * r, 100};
  std::vector<float> out(3);
  group.all_reduce(in, out, ReduceOp::avg);  // `in` is unchanged.
  if (first) print("average of it, into another:   ", out);

  std::vector<float> table{r, 5 - r, r, 5 - r, r, 5 - r};
  group.all_reduce(tutti::view(table, {2, 3}), ReduceOp::max);
  if (first) print("maximum of a 2 x 3 table:      ", table);

  // Rank 2 passes one row more than the other ranks. All ranks get this error, and none a wrong
  // sum.
  std::vector<float> rows(group.rank() == 2 ? 9 : 6);
  try {
    group.all_reduce(tutti::view(rows, {std::ssize(rows) / 3, 3}));
  } catch (const tutti::Error& error) {
    if (first) std::printf("\n%s\n\n", error.what());
  }
  std::vector<int> ranks{1};  // The error was found before data moved, so the group is usable.
  group.all_reduce(ranks);
  if (first) std::printf("the group still works: %d ranks\n", ranks[0]);
}

}  // namespace

int main() {
  constexpr int size = 3;
  const auto store = tutti::make_memory_store();
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([=] {
      auto group = tutti::ProcessGroup::create(
          {.backend = "local", .store = store, .rank = rank, .size = size});
      reduce(group);
    });
}
