#include "on_cuda.hpp"

#include "cuda/api.hpp"
#include "cuda/device.hpp"
#include "cuda/staged.hpp"
#include "values/fail.hpp"

namespace tutti::backend::gloo {

bool stages(Device device) noexcept {
  return device.type == DeviceType::cuda;
}

int device_count() {
  return cuda::count_devices();
}

std::unique_ptr<Backend> make_on_cuda(
    const BackendInit& init,
    const std::function<std::unique_ptr<Backend>(const BackendInit& on_host)>& make) {
  const auto& api = cuda::cuda_api();
  if (const auto why = cuda::absent(api); !why.empty()) tutti::fail(Errc::unsupported, why);
  const cuda::Gpu there(api, init.device.index);  // Throws before this rank joins the rendezvous.
  BackendInit on_host = init;
  on_host.device = {};
  on_host.memory = nullptr;
  return cuda::make_staged(make(on_host), init, api);
}

}  // namespace tutti::backend::gloo
