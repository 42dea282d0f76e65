#include <string>

#include <fmt/format.h>

#include <tutti/backend/backend_table.hpp>

#include "nccl/nccl.hpp"

// Prints the properties of this machine in lines of "name=value" for the script `run`. Status 77
// without a GPU.

namespace {

/// "13.0" of 13000.
std::string cuda_version(int code) {
  return fmt::format("{}.{}", code / 1000, code % 1000 / 10);
}

std::string why_not(std::string_view name) {
  for (const tutti::BackendEntry& entry : tutti::backends())
    if (entry.name == name) return entry.unavailable();
  return "not in this build";
}

}  // namespace

int main() {
  if (const std::string why = why_not("nccl_gpu"); !why.empty()) {
    fmt::print("no GPU: {}\n", why);
    return 77;
  }
  namespace backend = tutti::backend;
  int nccl = 0;
  int runtime = 0;
  int driver = 0;
  int devices = 0;
  (void)backend::nccl::nccl_api().get_version(&nccl);
  (void)backend::cuda::cuda_api().runtime_get_version(&runtime);
  (void)backend::cuda::cuda_api().driver_get_version(&driver);
  (void)backend::cuda::cuda_api().get_device_count(&devices);
  fmt::print("nccl={}\ncuda={}\ndriver_cuda={}\ndevices={}\n", backend::nccl::version_text(nccl),
             cuda_version(runtime), cuda_version(driver), devices);
  fmt::print("nccl_code={}\ngloo={}\n", nccl, why_not("gloo_gpu"));
}
