#include "nccl_api.hpp"

#include <string_view>

#include <fmt/format.h>

#include "values/fail.hpp"
#include "values/library.hpp"

namespace tutti::backend::nccl {
namespace {

constexpr int since_registration = NCCL_VERSION(2, 19, 0);
// 2.27 has the functions. Before 2.29.2 a platform without windows gets a handle all the same
// (ncclDevrWindowRegisterInGroup in NCCL's dev_runtime.cc). From 2.28 on symmetric kernels may read
// their input before the kernel before them has written it, until 2.30.7 (NVIDIA/nccl pull request
// 2209).
constexpr int since_windows = NCCL_VERSION(2, 30, 7);
// Offsets count from the beginning of the window, and are used from that of its allocation
// (NVIDIA/nccl issue 2198).
constexpr int since_windows_in_blocks = NCCL_VERSION(2, 31, 2);

}  // namespace

NcclApi load_nccl(const char* path) {
  const internal::Library library(
      {path},
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
                    "{} is NCCL {}; this backend needs 2.18 or newer: install a newer NCCL", path,
                    version_text(version));
  return api;
}

const NcclApi& nccl_api() {
  static const NcclApi api = load_nccl("libnccl.so.2");
  return api;
}

std::string version_text(int code) {
  // NCCL_VERSION() has another format up to 2.8.
  const int unit = code < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", code / unit, code % unit / 100, code % 100);
}

Error nccl_error(const NcclApi& nccl, ncclResult_t code, const char* call) {
  const char* text = nccl.get_last_error(nullptr);
  const std::string_view last = text == nullptr ? "" : text;
  const auto errc = code == ncclRemoteError ? Errc::peer_lost : Errc::backend;
  return {errc, fmt::format("{} failed: {}{}{}", call, nccl.get_error_string(code),
                            last.empty() ? "" : "; NCCL says: ", last)};
}

Features Features::of(const NcclApi& nccl) {
  Features has;
  check(nccl, nccl.get_version(&has.version), "ncclGetVersion");
  const auto there = [&](int since, auto... functions) {
    return has.version >= since && (... && (functions != nullptr));
  };
  has.memory = there(since_registration, nccl.mem_alloc, nccl.mem_free);
  has.registration = there(since_registration, nccl.comm_register, nccl.comm_deregister);
  has.windows = there(since_windows, nccl.comm_window_register, nccl.comm_window_deregister);
  has.windows_in_blocks = has.windows && has.version >= since_windows_in_blocks;
  return has;
}

std::string to_string(const Features& features) {
  const auto text = [](bool has) { return has ? "yes" : "no"; };
  return fmt::format(
      "memory of NCCL (2.19): {}; registered buffers (2.19): {}; symmetric windows (2.30.7): {}",
      text(features.memory), text(features.registration), text(features.windows));
}

}  // namespace tutti::backend::nccl
