#include "on_cuda.hpp"
#include "values/fail.hpp"

namespace tutti::backend::gloo {

bool stages(Device) noexcept {
  return false;
}

int device_count() {
  return 0;
}

std::unique_ptr<Backend> make_on_cuda(
    const BackendInit& init,
    const std::function<std::unique_ptr<Backend>(const BackendInit& on_host)>&) {
  internal::failf(Errc::unsupported,
                  "this build has no CUDA support and cannot use {}; rebuild tutti where "
                  "cuda_runtime_api.h is installed",
                  to_string(init.device));
}

}  // namespace tutti::backend::gloo
