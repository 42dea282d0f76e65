#include <cstdint>
#include <cstdio>
#include <vector>

#include <tutti/training.hpp>

int main() {
  auto group = tutti::ProcessGroup::create({});
  tutti::metrics::ScoredRows rows;
  rows.add(std::vector<float>{1, 2, 3}, std::vector<std::uint8_t>{0, 1, 1});
  std::printf("%g\n", tutti::metrics::binary_metrics(group, rows).auroc);
}
