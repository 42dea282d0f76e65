#include "features.hpp"

#include <fmt/format.h>

#include "errors.hpp"

namespace tutti::backend::nccl {
namespace {

constexpr int since_registration = NCCL_VERSION(2, 19, 0);
constexpr int since_windows = NCCL_VERSION(2, 27, 0);

}  // namespace

Features Features::of(const NcclApi& nccl) {
  Features has;
  check(nccl, nccl.get_version(&has.version), "ncclGetVersion");
  const auto there = [&](int since, auto... functions) {
    return has.version >= since && (... && (functions != nullptr));
  };
  has.memory = there(since_registration, nccl.mem_alloc, nccl.mem_free);
  has.registration = there(since_registration, nccl.comm_register, nccl.comm_deregister);
  has.windows = there(since_windows, nccl.comm_window_register, nccl.comm_window_deregister);
  return has;
}

std::string to_string(const Features& features) {
  const auto text = [](bool has) { return has ? "yes" : "no"; };
  return fmt::format(
      "memory of NCCL (2.19): {}; registered buffers (2.19): {}; symmetric windows (2.27): {}",
      text(features.memory), text(features.registration), text(features.windows));
}

}  // namespace tutti::backend::nccl
