#pragma once

#include <memory>

#include "backends/nccl/groups.hpp"
#include "cuda/staged.hpp"

namespace tutti::test::nccl_double {

/// One rank of a group on a device of the double, over a backend of host memory.
inline ProcessGroup make_staged_group(const BackendEntry& host, int rank, int size, int device,
                                      const std::shared_ptr<Store>& store,
                                      std::chrono::nanoseconds timeout = std::chrono::seconds(10),
                                      const backend::nccl::CudaApi& api = cuda()) {
  GroupOptions options{.store = store, .rank = rank, .size = size, .timeout = timeout, .name = "s"};
  options.logger = [](LogLevel, std::string_view) {};
  BackendInit init;
  init.store = make_prefix_store(store, "backend/");
  init.rank = rank;
  init.size = size;
  init.name = options.name;
  init.timeout = timeout;
  init.logger = options.logger;
  auto on_host = host.make(init);
  init.device = {DeviceType::cuda, device};
  return ProcessGroup::create(options, backend::cuda::make_staged(std::move(on_host), init, api));
}

}  // namespace tutti::test::nccl_double
