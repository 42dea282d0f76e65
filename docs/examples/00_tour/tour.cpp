// The program of README: ranks with different numbers of rows.

#include <cstddef>
#include <cstdio>
#include <vector>

#include <tutti/tutti.hpp>

int main() {
  auto group = tutti::init();  // Rank and size come from the launcher.

  std::vector<float> scores(std::size_t(group.rank() + 1), 0.5f);  // Rank r has r + 1 rows.
  auto all = tutti::all_gather_rows(group, scores);  // The rows of all ranks, in rank order.

  std::vector<double> sums{0.5 * (group.rank() + 1), group.rank() + 1.0};
  group.all_reduce(sums);  // In place. Spans and vectors are arrays.

  if (group.rank() == 0)
    std::printf("%d ranks hold %s rows, %.1f of %.0f scored\n", group.size(),
                to_string(all.layout).c_str(), sums[0], sums[1]);
}
