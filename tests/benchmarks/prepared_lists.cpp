// The same all_reduces as single calls, as one Coalesce and as a prepared list, in turn in one
// program, so that all three see the same machine. A rank of `tutti run`; rank 0 prints the median
// time of a step of each form. Arguments: the backend, the steps, the calls of a step, their bytes.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <tutti/tutti.hpp>

namespace {

struct Form {
  const char* name;
  std::function<void()> step;
  std::vector<double> ms{};
};

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) {
    return argc > i ? std::stoi(argv[i]) : otherwise;
  };
  const int steps = argument(2, 101);
  const int calls = argument(3, 1000);
  const int bytes = argument(4, 1024);
  auto group = tutti::init({.group = {.backend = argc > 1 ? argv[1] : "auto"}});
  std::vector<std::vector<float>> arrays(static_cast<std::size_t>(calls),
                                         std::vector<float>(static_cast<std::size_t>(bytes) / 4));
  const auto collect = [&](tutti::Coalesce& list) {
    for (auto& array : arrays) list.add(group.all_reduce_async(array, tutti::ReduceOp::max));
  };
  tutti::Coalesce fixed(group);
  collect(fixed);
  tutti::Prepared list = fixed.prepare();

  std::array<Form, 3> forms{{{"single calls",
                              [&] {
                                for (auto& array : arrays)
                                  group.all_reduce(array, tutti::ReduceOp::max);
                              }},
                             {"Coalesce",
                              [&] {
                                tutti::Coalesce together(group);
                                collect(together);
                                together.launch().wait();
                              }},
                             {"prepared list", [&] { list.launch().wait(); }}}};
  for (int step = -1; step < steps; ++step) {  // The first is a warm-up.
    for (auto& form : forms) {
      group.barrier();
      const auto begin = std::chrono::steady_clock::now();
      form.step();
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - begin;
      if (step >= 0) form.ms.push_back(took.count());
    }
  }
  const auto median = [](Form& form) {
    std::ranges::sort(form.ms);
    return form.ms.empty() ? 0 : form.ms[form.ms.size() / 2];
  };
  if (group.rank() != 0) return 0;
  const double coalesced = median(forms[1]);
  fmt::print("{} over {} ranks, {} calls of {} bytes, median of {} steps\n", group.backend(),
             group.size(), calls, bytes, steps);
  for (auto& form : forms)
    fmt::print("{:<14} {:8.3f} ms   {:.2f} of a Coalesce\n", form.name, median(form),
               median(form) / coalesced);
}
