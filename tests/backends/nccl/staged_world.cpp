#include "backends/nccl/double/bare_rank.hpp"
#include "cuda/staged.hpp"

// Host backends under arrays on devices of the double. The ranks share two devices.

namespace tutti::backend {

namespace local {
extern const BackendEntry entry;
}
namespace gloo {
extern const BackendEntry entry;
}

namespace {

std::unique_ptr<Backend> make_staged_over(const BackendEntry& host, const BackendInit& init) {
  BackendInit on_device = init;
  on_device.device = {DeviceType::cuda, init.rank % 2};
  test::nccl_double::cuda().set_device(on_device.device.index);
  return cuda::make_staged(host.make(init), on_device, test::nccl_double::cuda());
}

}  // namespace

namespace local_staged_double {
extern const BackendEntry entry;
const BackendEntry entry{
    .name = "local_staged_double",
    .summary = "the backend local under the double of CUDA",
    .serves = [](Device) noexcept { return true; },
    .unavailable = [] { return std::string(); },
    .make = [](const BackendInit& init) { return make_staged_over(local::entry, init); },
    .one_process = true,
};
}  // namespace local_staged_double

namespace gloo_staged_double {
extern const BackendEntry entry;
const BackendEntry entry{
    .name = "gloo_staged_double",
    .summary = "the backend gloo under the double of CUDA",
    .serves = [](Device) noexcept { return true; },
    .unavailable = [] { return std::string(); },
    .make = [](const BackendInit& init) { return make_staged_over(gloo::entry, init); },
    .one_process = true,
};
}  // namespace gloo_staged_double

}  // namespace tutti::backend
