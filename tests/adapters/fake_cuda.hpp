#pragma once

#include <functional>
#include <ostream>
#include <string>

#include <c10/core/Device.h>

#include <tutti/process_group.hpp>

// torch's device type cuda over the double of CUDA (tests/backends/nccl/double). A program that
// links fake_cuda.cpp has eight such devices: streams, events and memory are the double's, and
// every operator runs on the host, on copies. It reads its inputs and writes its outputs in the
// order of torch's current stream, and the host does not wait for the writes. So the double reports
// an array that is used on another stream without an order.

namespace tutti::test {

/// Runs `body` on threads. Rank r has device cuda:r, whose current stream in torch is not the
/// default one.
void on_cuda_threads(int size, const std::function<void(int rank, c10::Device device)>& body);

/// A group of such ranks.
struct CudaWorld {
  const char* backend = "nccl";  ///< "nccl" over its double; "local": staged over host memory.
  int size = 1;
};
inline std::string to_string(const CudaWorld& world) {
  return std::string(world.backend) + "_" + std::to_string(world.size);
}
inline std::ostream& operator<<(std::ostream& out, const CudaWorld& world) {
  return out << to_string(world);
}
void on_cuda_ranks(const CudaWorld& world,
                   const std::function<void(ProcessGroup& group, c10::Device device)>& body);

}  // namespace tutti::test
