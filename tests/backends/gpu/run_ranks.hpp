#pragma once

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/cluster.hpp>
#include <tutti/init.hpp>

#include "copies.hpp"
#include "cuda/fold_kernels.hpp"
#include "cuda_functions.hpp"
#include "own_default_stream.hpp"
#include "rank.hpp"

// The ranks of a program: one per process, or several threads that share a device.

namespace tutti::gpu {

/// The exit status of a rank, and its last line.
struct Outcome {
  int status = 0;
  std::string text{};
};

/// The reason why the backend nccl cannot be used here; empty if it can.
inline std::string why_no_gpu() {
  for (const BackendEntry& entry : backends())
    if (entry.name == "nccl_gpu") return entry.unavailable();
  return "not in this build";
}

/// This process as its launcher tells it, alone without one; its device by its local rank.
/// @throws Error.
inline Rank find_rank() {
  namespace cuda = backend::cuda;
  Rank here;
  const int devices = std::max(cuda::count_devices(), 1);
  const std::optional<ClusterInfo> info = VariablesEnvironment().detect();
  if (info) {
    here.rank = info->rank;
    here.size = info->size;
    here.device = (info->local_rank >= 0 ? info->local_rank : info->rank) % devices;
  }
  here.store = info && info->size > 1 ? open_cluster_store(*info) : make_memory_store();
  here.backend = "nccl_gpu";
  here.apis = {&backend::nccl::nccl_api(), &cuda::cuda_api(), nullptr, cuda::fold_image()};
  if (!here.apis.fold_image.empty()) here.apis.driver = &cuda::driver_api();
  return here;
}

/// Takes "--copies N" out of the arguments: the number of ranks that share a device as threads of
/// this process; 0 without it. Negative if N is no such number.
inline int take_copies(std::vector<std::string_view>& arguments) {
  const auto option = std::ranges::find(arguments, "--copies");
  if (option == arguments.end()) return 0;
  int copies = 0;
  if (option + 1 == arguments.end()) return -1;
  const std::string_view text = option[1];
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), copies);
  arguments.erase(option, option + 2);
  const bool good = error == std::errc() && end == text.data() + text.size();
  return good && copies >= 1 && copies <= most_ranks ? copies : -1;
}

/// Runs `body` as the rank of this process, or as all ranks, which are `copies` threads. Prints the
/// lines of the ranks, the worst one last. Returns its status; 77 without a GPU. An exception of a
/// rank ends the process.
inline int run_ranks(int copies, const std::function<Outcome(const Rank& here)>& body) {
  if (const std::string why = why_no_gpu(); !why.empty()) {
    fmt::print("no GPU: {}\n", why);
    return 77;
  }
  const auto outcome = [&](const std::function<Rank()>& find) -> Outcome {
    try {
      Rank here = find();
      here.elapsed_us = [cuda = load_cuda_functions()](cudaEvent_t from, cudaEvent_t to) {
        return cuda.elapsed_us(from, to);
      };
      const backend::cuda::DeviceScope scope(*here.apis.cuda, here.device);
      return body(here);
    } catch (const std::exception& error) {
      fmt::print("error: {}\n", error.what());
      std::fflush(stdout);
      std::_Exit(1);  // Other threads may wait for this rank without a deadline.
    }
  };
  std::vector<Outcome> all(static_cast<std::size_t>(std::max(copies, 1)));
  if (copies == 0) {
    all[0] = outcome(find_rank);
  } else {
    const auto store = make_memory_store();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < copies; ++rank)
      threads.emplace_back([&, rank] {
        all[static_cast<std::size_t>(rank)] = outcome([&] {
          Rank here{.rank = rank, .size = copies, .store = store, .backend = "nccl_copies"};
          here.apis = apis_on_one_device(rank, copies);
          return here;
        });
      });
    for (auto& thread : threads) thread.join();
  }
  std::ranges::stable_sort(all, {}, &Outcome::status);
  for (const Outcome& one : all)
    if (!one.text.empty()) fmt::print("{}\n", one.text);
  return all.back().status;
}

}  // namespace tutti::gpu
