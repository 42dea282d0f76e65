#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include <tutti/backend/backend_table.hpp>

#include "nccl/nccl.hpp"

// Prints the properties of this machine in lines of "name=value" for the script `run`. Status 77
// without a GPU, 69 if there is one that cannot be used, for example because a library is missing.

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

/// True if the kernel has a GPU, whatever libraries are installed.
bool has_device_file() {
  std::error_code none;
  if (std::filesystem::exists("/dev/dxg", none)) return true;
  constexpr std::string_view prefix = "nvidia";
  for (const auto& entry : std::filesystem::directory_iterator("/dev", none)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > prefix.size() && name.starts_with(prefix) && name[prefix.size()] >= '0' &&
        name[prefix.size()] <= '9')
      return true;
  }
  return false;
}

}  // namespace

int main() {
  if (const std::string why = why_not("nccl_gpu"); !why.empty()) {
    const bool here = has_device_file();
    fmt::print("{}: {}\n", here ? "the GPU cannot be used" : "no GPU", why);
    return here ? 69 : 77;
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
