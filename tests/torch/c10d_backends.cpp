#include "c10d_backends.hpp"

#include "backends/nccl/double/bare_rank.hpp"
#include "cuda/staged.hpp"

// The backends of torch_c10d_device_test: their names are those of the library, and their devices
// those of the double.

namespace tutti::test {
thread_local bool without_nccl = false;
}  // namespace tutti::test

namespace tutti::backend {

namespace gloo {
extern const BackendEntry entry;
}

namespace gloo_over_double {
extern const BackendEntry entry;
const BackendEntry entry{
    .name = "gloo",
    .summary = "gloo, whose devices are the double's",
    .serves = [](Device device) noexcept { return device.type == DeviceType::cpu; },
    .unavailable = [] { return std::string(); },
    .make =
        [](const BackendInit& init) {
          BackendInit on_host = init;
          on_host.device = {};
          auto host = gloo::entry.make(on_host);
          if (init.device.type == DeviceType::cpu) return host;
          return cuda::make_staged(std::move(host), init, test::nccl_double::cuda());
        },
    .stages = [](Device device) noexcept { return device.type == DeviceType::cuda; },
};
}  // namespace gloo_over_double

namespace nccl_over_double {
extern const BackendEntry entry;
const BackendEntry entry{
    .name = "nccl",
    .summary = "nccl over its double",
    .serves = [](Device device) noexcept { return device.type == DeviceType::cuda; },
    .unavailable =
        [] { return std::string(test::without_nccl ? "this rank has no libnccl.so.2" : ""); },
    .make =
        [](const BackendInit& init) { return nccl::make_nccl(init, test::nccl_double::apis()); },
};
}  // namespace nccl_over_double

}  // namespace tutti::backend
