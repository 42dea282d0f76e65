#include <sys/resource.h>

#include <ctime>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <tutti/group_options.hpp>
#include <tutti/losses/clip.hpp>
#include <tutti/process_group.hpp>
#include <tutti/store/store.hpp>

// usage: clip_step DIRECTORY SIZE RANK ROWS DIMS
//
// A rank of clip_steps.py. Its features are in DIRECTORY/RANK.features: anchors, then candidates,
// [ROWS, DIMS] each, f32. For each line of the input it computes losses::Clip and its gradients,
// and prints the seconds by the clock and those of the processor, the KiB by which steps have
// raised the peak of the process's memory, the loss and the gradient by the scale. At the end of
// the input it writes the gradients of the features to DIRECTORY/tutti.RANK.gradients.

namespace {

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// The most memory that the process has had, KiB.
long peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const std::string directory = argv[1];
  const int size = std::atoi(argv[2]);
  const int rank = std::atoi(argv[3]);
  const std::int64_t rows = std::atoll(argv[4]);
  const std::int64_t dims = std::atoll(argv[5]);
  const auto bytes = static_cast<std::streamsize>(rows * dims * std::int64_t{sizeof(float)});

  std::array<std::vector<float>, 2> features;
  std::ifstream in(directory + "/" + argv[3] + ".features", std::ios::binary);
  for (auto& side : features) {
    side.resize(static_cast<std::size_t>(rows * dims));
    in.read(reinterpret_cast<char*>(side.data()), bytes);
  }
  if (!in) return 1;
  const auto view_of = [&](const std::vector<float>& side) {
    return tutti::ConstTensorView(side.data(), tutti::DType::f32, {rows, dims});
  };
  auto group = tutti::ProcessGroup::create(
      {.backend = "shm", .store = tutti::make_file_store(directory), .rank = rank, .size = size});
  tutti::losses::Clip clip({.scale = 14.3});
  tutti::losses::FeatureResult result;
  const long before = peak_memory();
  for (std::string line; std::getline(std::cin, line);) {
    group.barrier();
    const double processor = processor_seconds();
    const auto begin = std::chrono::steady_clock::now();
    result = clip(group, {.anchors = view_of(features[0]), .candidates = view_of(features[1])});
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%.6f %.6f %ld %.9g %.9g\n", seconds.count(), processor_seconds() - processor,
                peak_memory() - before, result.loss, result.grad_scale);
    std::fflush(stdout);
  }
  std::ofstream out(directory + "/tutti." + argv[3] + ".gradients", std::ios::binary);
  for (const auto* side : {&result.grad_anchors, &result.grad_candidates})
    out.write(static_cast<const char*>(side->data()), bytes);
  return out ? 0 : 1;
}
