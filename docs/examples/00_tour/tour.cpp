#include <cstddef>
#include <cstdio>
#include <vector>

#include <tutti/tutti.hpp>

int main() {
  auto group = tutti::init();  // Rank and size come from the launcher.

  std::vector<float> own(std::size_t(group.rank() + 1), 0.5f);  // Rank r has r + 1 rows.
  auto all = tutti::all_gather_rows(group, own);  // The rows of all ranks, in rank order.

  std::vector<double> sums{0.5 * (group.rank() + 1), group.rank() + 1.0};
  group.all_reduce(sums);  // In place. Spans and vectors are arrays.

  std::printf("%zu rows of %s; %.1f of %.0f scored\n", own.size(), to_string(all.rows).c_str(),
              sums[0], sums[1]);
}
