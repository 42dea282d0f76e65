#pragma once

#include <nccl.h>

#include <cstddef>
#include <string>

#include <tutti/error.hpp>

// NCCL's functions as a table. The library is opened when the program needs it, not when the
// program is linked or loaded, and tests pass a table of their own.

namespace tutti::backend::nccl {

/// Entries X(field, function): the required functions, all of which NCCL 2.18 has.
#define TUTTI_NCCL_FUNCTIONS(X)                          \
  X(get_version, ncclGetVersion)                         \
  X(get_unique_id, ncclGetUniqueId)                      \
  X(comm_init_rank_config, ncclCommInitRankConfig)       \
  X(comm_get_async_error, ncclCommGetAsyncError)         \
  X(comm_abort, ncclCommAbort)                           \
  X(comm_finalize, ncclCommFinalize)                     \
  X(comm_destroy, ncclCommDestroy)                       \
  X(comm_count, ncclCommCount)                           \
  X(comm_user_rank, ncclCommUserRank)                    \
  X(comm_cu_device, ncclCommCuDevice)                    \
  X(group_start, ncclGroupStart)                         \
  X(group_end, ncclGroupEnd)                             \
  X(all_reduce, ncclAllReduce)                           \
  X(reduce, ncclReduce)                                  \
  X(broadcast, ncclBroadcast)                            \
  X(all_gather, ncclAllGather)                           \
  X(reduce_scatter, ncclReduceScatter)                   \
  X(send, ncclSend)                                      \
  X(recv, ncclRecv)                                      \
  X(red_op_create_pre_mul_sum, ncclRedOpCreatePreMulSum) \
  X(red_op_destroy, ncclRedOpDestroy)                    \
  X(get_error_string, ncclGetErrorString)                \
  X(get_last_error, ncclGetLastError)

/// Entries X(field, function, parameters): optional functions of later versions; all return
/// ncclResult_t. Features tells which may be called. The types are written out because nccl.h may
/// be older than the library; a window is a pointer to a structure whose name has changed.
#define TUTTI_NCCL_OPTIONAL_FUNCTIONS(X)                                        \
  X(mem_alloc, ncclMemAlloc, (void** data, std::size_t bytes))                  \
  X(mem_free, ncclMemFree, (void* data))                                        \
  X(comm_register, ncclCommRegister,                                            \
    (const ncclComm_t comm, void* data, std::size_t bytes, void** handle))      \
  X(comm_deregister, ncclCommDeregister, (const ncclComm_t comm, void* handle)) \
  X(comm_window_register, ncclCommWindowRegister,                               \
    (ncclComm_t comm, void* data, std::size_t bytes, void** window, int flags)) \
  X(comm_window_deregister, ncclCommWindowDeregister, (ncclComm_t comm, void* window))

/// A value type. Only optional functions may be null.
struct NcclApi {
#define TUTTI_FIELD(field, function) decltype(&::function) field = nullptr;
  TUTTI_NCCL_FUNCTIONS(TUTTI_FIELD)
#undef TUTTI_FIELD
#define TUTTI_FIELD(field, function, parameters) ncclResult_t(*field) parameters = nullptr;
  TUTTI_NCCL_OPTIONAL_FUNCTIONS(TUTTI_FIELD)
#undef TUTTI_FIELD
};

/// The functions of the library `path`, which is never unloaded. A copy of a library's file under
/// another path has a state of its own. @throws Error unsupported; its text names the library, the
/// reason and what to install.
NcclApi load_nccl(const char* path);

/// The functions of the installed library, loaded at the first call. @throws Error as load_nccl().
const NcclApi& nccl_api();

/// "2.28.9" of 22809.
std::string version_text(int code);

/// The error of `call`, which returned `code`, with NCCL's last text. peer_lost for
/// ncclRemoteError, otherwise backend.
Error nccl_error(const NcclApi& nccl, ncclResult_t code, const char* call);

/// Throws nccl_error() unless `code` is ncclSuccess or ncclInProgress, which a non-blocking
/// communicator returns while an operation is in progress.
inline void check(const NcclApi& nccl, ncclResult_t code, const char* call) {
  if (code != ncclSuccess && code != ncclInProgress) [[unlikely]]
    throw nccl_error(nccl, code, call);
}

/// The functions that a library has beyond NCCL 2.18. Each needs both the version and the symbol,
/// because some vendors' libraries have only one of the two.
struct Features {
  int version = 0;            ///< The result of ncclGetVersion().
  bool memory = false;        ///< ncclMemAlloc and ncclMemFree, since 2.19.
  bool registration = false;  ///< ncclCommRegister and ncclCommDeregister, since 2.19.
  bool windows = false;       ///< ncclCommWindowRegister and -Deregister, since 2.30.7.
  /// Windows of any part of a block of ncclMemAlloc, since 2.31.2; before that a block has one
  /// window, which begins where the block begins.
  bool windows_in_blocks = false;

  /// @throws Error when the version cannot be queried.
  static Features of(const NcclApi& nccl);
};

/// "memory of NCCL (2.19): yes; ...".
std::string to_string(const Features& features);

}  // namespace tutti::backend::nccl
