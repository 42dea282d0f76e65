#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <tutti/process_group.hpp>
#include <tutti/store/store.hpp>

#include "cuda/device.hpp"
#include "nccl/nccl.hpp"

// The common parts of the measurements: a rank, its groups and its clock.

namespace tutti::gpu {

/// One rank of several, each of which is a process or a thread.
struct Rank {
  int rank = 0;
  int size = 1;
  int device = 0;
  std::shared_ptr<Store> store{};
  std::string backend{};  ///< Its name in the table of the programs.
  backend::nccl::Apis apis{};
  /// Waits for the event `to`. The time between both.
  std::function<double(cudaEvent_t from, cudaEvent_t to)> elapsed_us{};
};

/// Makes a group over the rank's tables. No two have one name. @throws Error.
inline ProcessGroup make_group(const Rank& here, const std::string& name) {
  GroupOptions options;
  options.store = make_prefix_store(here.store, name + "/front/");
  options.rank = here.rank;
  options.size = here.size;
  options.name = name;
  options.checked = false;
  BackendInit init;
  init.store = make_prefix_store(here.store, name + "/");
  init.rank = here.rank;
  init.size = here.size;
  init.name = name;
  init.device = {DeviceType::cuda, here.device};
  init.timeout = std::chrono::minutes(1);
  init.logger = default_logger();
  return ProcessGroup::create(options, backend::nccl::make_nccl(init, here.apis));
}

/// Blocks until all ranks have come to `place`, which no rank passes twice. @throws Error.
inline void meet(const Rank& here, const std::string& place) {
  if (here.store->add(place + "/here", 1) == here.size) here.store->set(place + "/all", "");
  (void)here.store->get(place + "/all", Deadline::after(std::chrono::minutes(1)));
}

/// True on all ranks if rank 0 says so. `question` is new. @throws Error.
inline bool ask_rank_0(const Rank& here, const std::string& question,
                       const std::function<bool()>& answer) {
  if (here.rank == 0) {
    const bool yes = answer();
    here.store->set(question, yes ? "yes" : "no");
    return yes;
  }
  return here.store->get(question, Deadline::after(std::chrono::minutes(1))).size() == 3;
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// An event that measures.
class Mark {
 public:
  explicit Mark(const backend::cuda::CudaApi& cuda) : cuda_(cuda) {
    check(cuda, cuda.event_create_with_flags(&event_, cudaEventDefault),
          "cudaEventCreateWithFlags");
  }
  ~Mark() { (void)cuda_.event_destroy(event_); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  void record(cudaStream_t stream) {
    check(cuda_, cuda_.event_record(event_, stream), "cudaEventRecord");
  }
  cudaEvent_t get() const noexcept { return event_; }

 private:
  const backend::cuda::CudaApi& cuda_;
  cudaEvent_t event_ = nullptr;
};

/// The bytes of a size as "3 MiB".
inline std::string size_text(std::size_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  while (unit < 3 && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes, units[unit]);
}

}  // namespace tutti::gpu
