// A library with NCCL's functions that does nothing but remember, as NCCL does, the environment of
// its first use in a static variable, and count its calls in another one. For tests of copies of a
// library.

#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

int ids = 0;

/// NCCL_HOSTID as it was at the first call.
constexpr const char* host_variable = "NCCL_HOSTID";
const char* host() {
  static const std::string text = [] {
    const char* value = std::getenv(host_variable);
    return value == nullptr ? "none" : value;
  }();
  return text.c_str();
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION(2, 28, 9);
  return ncclSuccess;
}

/// The id is the number of calls so far.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  ++ids;
  std::memcpy(id->internal, &ids, sizeof ids);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t*) {
  (void)host();
  *comm = nullptr;
  return ncclSuccess;
}

const char* ncclGetLastError(ncclComm_t) {
  return host();
}

}  // extern "C"
