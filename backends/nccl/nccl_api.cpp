#include "nccl_api.hpp"

#include <fmt/format.h>

#include "cuda/library.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {
namespace {

NcclApi load() {
  const cuda::Library library(
      {"libnccl.so.2"},
      "install NCCL 2.18 or newer (Debian: libnccl2; Python: nvidia-nccl-cu13) "
      "and put its folder into LD_LIBRARY_PATH");
  NcclApi api;
#define TUTTI_LOAD(field, function) library.load(api.field, #function);
  TUTTI_NCCL_FUNCTIONS(TUTTI_LOAD)
#undef TUTTI_LOAD
#define TUTTI_LOAD(field, function, parameters) library.load_if_there(api.field, #function);
  TUTTI_NCCL_OPTIONAL_FUNCTIONS(TUTTI_LOAD)
#undef TUTTI_LOAD
  int version = 0;
  if (api.get_version(&version) != ncclSuccess || version < NCCL_VERSION(2, 18, 0))
    internal::failf(Errc::unsupported,
                    "libnccl.so.2 is NCCL {}; this backend needs 2.18 or newer: install one",
                    version_text(version));
  return api;
}

}  // namespace

const NcclApi& nccl_api() {
  static const NcclApi api = load();
  return api;
}

std::string version_text(int code) {
  // NCCL_VERSION() counts otherwise up to 2.8.
  const int unit = code < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", code / unit, code % unit / 100, code % 100);
}

}  // namespace tutti::backend::nccl
