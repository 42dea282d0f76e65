#pragma once

#include <ucp/api/ucp.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include <string_view>

#include <tutti/error.hpp>
#include <tutti/log.hpp>

// UCX's functions as a table. The library is opened when the program needs it, not when the program
// is linked or loaded.

namespace tutti::backend::ucx {

/// Entries X(field, function). UCX 1.10 has all of them.
#define TUTTI_UCX_FUNCTIONS(X)                          \
  X(get_version_string, ucp_get_version_string)         \
  X(config_read, ucp_config_read)                       \
  X(config_modify, ucp_config_modify)                   \
  X(config_release, ucp_config_release)                 \
  X(init_version, ucp_init_version)                     \
  X(cleanup, ucp_cleanup)                               \
  X(worker_create, ucp_worker_create)                   \
  X(worker_destroy, ucp_worker_destroy)                 \
  X(worker_get_address, ucp_worker_get_address)         \
  X(worker_release_address, ucp_worker_release_address) \
  X(worker_get_efd, ucp_worker_get_efd)                 \
  X(worker_arm, ucp_worker_arm)                         \
  X(worker_signal, ucp_worker_signal)                   \
  X(worker_progress, ucp_worker_progress)               \
  X(ep_create, ucp_ep_create)                           \
  X(ep_flush, ucp_ep_flush_nbx)                         \
  X(ep_close, ucp_ep_close_nbx)                         \
  X(ep_print_info, ucp_ep_print_info)                   \
  X(tag_send, ucp_tag_send_nbx)                         \
  X(tag_send_sync, ucp_tag_send_sync_nbx)               \
  X(tag_recv, ucp_tag_recv_nbx)                         \
  X(tag_probe, ucp_tag_probe_nb)                        \
  X(tag_msg_recv, ucp_tag_msg_recv_nbx)                 \
  X(request_check_status, ucp_request_check_status)     \
  X(request_cancel, ucp_request_cancel)                 \
  X(request_free, ucp_request_free)                     \
  X(status_string, ucs_status_string)                   \
  X(log_push_handler, ucs_log_push_handler)             \
  X(disable_signal, ucs_debug_disable_signal)

/// A value type; no field is null.
struct UcxApi {
#define TUTTI_FIELD(field, function) decltype(&::function) field = nullptr;
  TUTTI_UCX_FUNCTIONS(TUTTI_FIELD)
#undef TUTTI_FIELD
};

/// The functions of the installed library, loaded at the first call and never unloaded. @throws
/// Error unsupported; its text names the library, the reason and what to install.
const UcxApi& ucx_api();

/// Throws Error backend with UCX's text unless `status` is UCS_OK.
void check(const UcxApi& api, ucs_status_t status, std::string_view call);

/// While this object lives, UCX's log messages of this thread go to `logger`.
class LogTo {
 public:
  explicit LogTo(const Logger& logger) noexcept;
  ~LogTo();
  LogTo(const LogTo&) = delete;
  LogTo& operator=(const LogTo&) = delete;

 private:
  const Logger* before_;
};

}  // namespace tutti::backend::ucx
