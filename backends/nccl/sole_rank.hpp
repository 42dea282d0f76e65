#pragma once

#include <string>

#include <nccl.h>

namespace tutti::backend::nccl {

/// A rank's place on a device, among the groups of this process. A call has the device to itself
/// until NCCL has queued it, and NCCL may wait for the other ranks before: one that waited for the
/// same device, in the same process, would never come.
class SoleRank {
 public:
  /// @throws Error unsupported when another rank of the communicator is there.
  SoleRank(const ncclUniqueId& id, int device, const std::string& group);
  ~SoleRank();
  SoleRank(const SoleRank&) = delete;
  SoleRank& operator=(const SoleRank&) = delete;

 private:
  std::string id_;
  int device_;
};

}  // namespace tutti::backend::nccl
