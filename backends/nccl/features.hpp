#pragma once

#include <string>

#include "nccl_api.hpp"

namespace tutti::backend::nccl {

/// What a library has beyond NCCL 2.18: its version has to say so, and the symbols have to be
/// there, because vendors build libraries that have the one without the other.
struct Features {
  int version = 0;            ///< What ncclGetVersion() says.
  bool memory = false;        ///< ncclMemAlloc and ncclMemFree, since 2.19.
  bool registration = false;  ///< ncclCommRegister and ncclCommDeregister, since 2.19.
  bool windows = false;       ///< ncclCommWindowRegister and -Deregister, since 2.27.

  /// @throws Error when the version cannot be asked.
  static Features of(const NcclApi& nccl);
};

/// "memory of NCCL (2.19): yes; ...".
std::string to_string(const Features& features);

}  // namespace tutti::backend::nccl
