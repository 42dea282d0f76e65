#include <cstdio>
#include <vector>

#include <tutti/tutti.hpp>

int main() {
  auto group = tutti::ProcessGroup::create({});
  std::vector<float> x{1, 2, 3};
  group.all_reduce(x);
  std::printf("tutti %s: %g %g %g\n", tutti::library_version_string().data(), x[0], x[1], x[2]);
}
