#pragma once

#include <chrono>
#include <string>

#include "ucx_api.hpp"

namespace tutti::backend::ucx {

/// The transports that a worker may use.
struct Transports {
  std::string list{};  ///< The value of UCX_TLS; empty: that of the environment, or UCX's own.
  /// They report the end of a connection. UCX's shared memory does not.
  bool report_ends = true;
  bool one_host = false;  ///< All ranks reach each other over the loopback interface.
  /// The kernel ends a connection whose peer's host does not answer for so long, if UCX can set it
  /// (1.13); 0: UCX's own time.
  std::chrono::nanoseconds dead_after{};
};

/// True if UCX may use TCP.
bool has_tcp(const Transports& transports);
/// True if there is an InfiniBand or RoCE adapter.
bool has_infiniband();

/// UCX's configuration: what the user sets in the environment, and this backend's defaults.
class Config {
 public:
  /// @throws Error backend with UCX's reason.
  Config(const UcxApi& api, const Transports& transports);
  ~Config() { api_.config_release(config_); }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;
  operator const ucp_config_t*() const noexcept { return config_; }

 private:
  explicit Config(const UcxApi& api);
  void use_loopback();
  void set_tcp(const char* option, const char* value);

  const UcxApi& api_;
  ucp_config_t* config_ = nullptr;
};

}  // namespace tutti::backend::ucx
