#pragma once

#include <cstdlib>

#include <fmt/format.h>

#include "ucx_api.hpp"

namespace tutti::backend::ucx {

/// UCX's configuration, which the user sets in the environment.
class Config {
 public:
  explicit Config(const UcxApi& api) : api_(api) {
    check(api, api.config_read(nullptr, nullptr, &config_), "ucp_config_read");
  }
  ~Config() { api_.config_release(config_); }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;

  void set(const char* name, const char* value) {
    check(api_, api_.config_modify(config_, name, value),
          fmt::format("setting UCX_{} to {}", name, value));
  }
  /// Sets it unless the user has.
  void set_default(const char* name, const char* value) {
    if (std::getenv(fmt::format("UCX_{}", name).c_str()) == nullptr) set(name, value);
  }
  operator const ucp_config_t*() const noexcept { return config_; }

 private:
  const UcxApi& api_;
  ucp_config_t* config_ = nullptr;
};

}  // namespace tutti::backend::ucx
