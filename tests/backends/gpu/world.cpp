#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include <tutti/backend/backend_table.hpp>

#include "copies.hpp"

// The backend table of a conformance suite on real devices: nccl with rank r on device r (of fewer
// devices they take turns), nccl with all ranks on device 0, over copies of its library, and gloo
// whose arrays are on device 0. The counterpart of tests/backends/nccl/world.cpp, which uses the
// double.

namespace tutti::backend {

using namespace std::chrono_literals;

namespace nccl {
extern const BackendEntry entry;
}

namespace nccl_gpu {
extern const BackendEntry entry;
const BackendEntry entry{
    .name = "nccl_gpu",
    .summary = "the backend nccl on the devices of this machine",
    .serves = [](Device) noexcept { return true; },  // The suite names no device.
    .unavailable = [] { return nccl::entry.unavailable(); },
    .make =
        [](const BackendInit& init) {
          BackendInit on_device = init;
          const int count = std::max(nccl::entry.device_count(), 1);
          // NCCL connects the devices in more than the timeout of some cases, which is of calls.
          on_device.timeout = std::max<std::chrono::nanoseconds>(init.timeout, 5s);
          if (init.device.type == DeviceType::cpu)
            on_device.device = {DeviceType::cuda, init.rank % count};
          return nccl::entry.make(on_device);
        },
    .adopts = nccl::entry.adopts,
    .device_count = [] { return nccl::entry.device_count(); },
};
}  // namespace nccl_gpu

namespace nccl_copies {
extern const BackendEntry entry;
const BackendEntry entry{
    .name = "nccl_copies",
    .summary = "the backend nccl with all ranks on device 0 of one process",
    .serves = [](Device) noexcept { return true; },
    .unavailable = [] { return nccl::entry.unavailable(); },
    .make =
        [](const BackendInit& init) {
          BackendInit on_device = init;
          on_device.device = {DeviceType::cuda, 0};
          return nccl::make_nccl(on_device, gpu::apis_on_one_device(init.rank, init.size));
        },
    .one_process = true,
    .adopts = nccl::entry.adopts,
    .device_count = [] { return nccl::entry.device_count(); },
};
}  // namespace nccl_copies

#ifdef HAVE_GLOO
namespace gloo {
extern const BackendEntry entry;
}
#endif

namespace gloo_gpu {
extern const BackendEntry entry;
const BackendEntry entry{
    .name = "gloo_gpu",
    .summary = "the backend gloo with arrays on device 0",
    .serves = [](Device) noexcept { return true; },
#ifdef HAVE_GLOO
    .unavailable = []() -> std::string {
      if (gloo::entry.stages == nullptr || !gloo::entry.stages({DeviceType::cuda, 0}))
        return "gloo of this build has no CUDA arrays";
      if (std::string why = gloo::entry.unavailable(); !why.empty()) return why;
      return nccl::entry.device_count() == 0 ? "CUDA sees no device" : "";
    },
    .make =
        [](const BackendInit& init) {
          BackendInit on_device = init;
          on_device.device = {DeviceType::cuda, 0};
          return gloo::entry.make(on_device);
        },
#else
    .unavailable = [] { return std::string("this build has no gloo"); },
    .make = [](const BackendInit&) { return std::unique_ptr<Backend>(); },
#endif
};
}  // namespace gloo_gpu

}  // namespace tutti::backend
