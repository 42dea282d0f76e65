#include "common/environment.hpp"

#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace tutti::tool {
namespace {

constexpr std::array<std::string_view, 10> launcher_variables{
    "TUTTI_RANK",  "TUTTI_SIZE",         "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE", "TUTTI_NODE",
    "TUTTI_STORE", "TUTTI_STORE_HOSTED", "TUTTI_STORE_PORT", "TUTTI_TOKEN_FILE", "TUTTI_TOKEN"};

}  // namespace

std::map<std::string, std::string> allowed_environment(const std::vector<std::string>& more) {
  std::vector<std::string> patterns{
      "TUTTI_*", "NCCL_*", "GLOO_*", "UCX_*", "FI_*", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"};
  patterns.insert(patterns.end(), more.begin(), more.end());
  std::map<std::string, std::string> allowed;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string name(text.substr(0, equals));
    // Skips the launcher's variables, which differ between ranks and runs, and a secret. The record
    // has them as `world`.
    if (std::find(launcher_variables.begin(), launcher_variables.end(), name) !=
        launcher_variables.end())
      continue;
    if (std::any_of(patterns.begin(), patterns.end(), [&name](const std::string& pattern) {
          return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
        }))
      allowed[name] = text.substr(equals + 1);
  }
  return allowed;
}

}  // namespace tutti::tool
