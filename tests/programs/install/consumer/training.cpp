#include <cstdint>
#include <cstdio>
#include <vector>

#include <tutti/training.hpp>

int main() {
  auto group = tutti::ProcessGroup::create({});
  std::vector<float> scores{1, 2, 3};
  std::vector<std::uint8_t> targets{0, 1, 1};
  tutti::metrics::ScoredRows rows;
  rows.add(scores, targets);
  std::printf("%g\n", tutti::metrics::binary_metrics(group, rows).auroc);
}
