#include "common/build.hpp"

#include <fmt/format.h>

namespace tutti::tool {

std::string git_version() {
  return
#include "common/git_version.inc"
      ;
}

std::string compiler() {
#ifdef __clang__
  return fmt::format("clang++ {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

std::string build_type() {
  return TUTTI_TOOL_BUILD_TYPE;
}

}  // namespace tutti::tool
