#include "sole_rank.hpp"

#include <mutex>
#include <set>
#include <utility>

#include "values/fail.hpp"

namespace tutti::backend::nccl {
namespace {

struct DeviceClaims {
  std::mutex mutex;
  std::set<std::pair<std::string, int>> taken;
};

/// Of the process.
DeviceClaims& claims() {
  static auto& all = *new DeviceClaims;
  return all;
}

}  // namespace

SoleRank::SoleRank(const ncclUniqueId& id, int device, const std::string& group)
    : id_(id.internal, sizeof id.internal), device_(device) {
  const std::lock_guard lock(claims().mutex);
  if (!claims().taken.emplace(id_, device_).second)
    internal::failf(Errc::unsupported,
                    "another rank of group '{}' uses cuda:{} in this process; give each rank a "
                    "device or a process of its own",
                    group, device);
}

SoleRank::~SoleRank() {
  const std::lock_guard lock(claims().mutex);
  claims().taken.erase({id_, device_});
}

}  // namespace tutti::backend::nccl
