#pragma once

#include <chrono>
#include <string_view>

#include "ucx_api.hpp"

namespace tutti::backend::ucx {

/// UCX's configuration: what the user sets in the environment, and this backend's defaults.
class Config {
 public:
  /// `transports`: the value of UCX_TLS; empty: that of the environment, or UCX's own.
  /// `dead_after`: the time after which the kernel ends a connection whose peer's host does not
  /// answer, if UCX can set it (1.13); 0: UCX's own. @throws Error backend with UCX's reason.
  Config(const UcxApi& api, std::string_view transports, std::chrono::nanoseconds dead_after);
  ~Config() { api_.config_release(config_); }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;
  operator const ucp_config_t*() const noexcept { return config_; }

 private:
  explicit Config(const UcxApi& api);
  void set_tcp(const char* option, const char* value);

  const UcxApi& api_;
  ucp_config_t* config_ = nullptr;
};

}  // namespace tutti::backend::ucx
