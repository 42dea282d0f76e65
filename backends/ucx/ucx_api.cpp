#include "ucx_api.hpp"

#include <dlfcn.h>

#include <array>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "values/fail.hpp"
#include "values/library.hpp"

namespace tutti::backend::ucx {
namespace {

constexpr const char* core_library = "libucs.so.0";

thread_local const Logger* log_of_this_thread = nullptr;

ucs_log_func_rc_t log(const char*, unsigned, const char*, ucs_log_level_t level,
                      const ucs_log_component_config_t*, const char* format, va_list arguments) {
  const auto* logger = log_of_this_thread;
  if (logger == nullptr) return UCS_LOG_FUNC_RC_CONTINUE;
  std::array<char, 512> text{};
  (void)std::vsnprintf(text.data(), text.size(), format, arguments);
  try {
    (*logger)(level <= UCS_LOG_LEVEL_WARN ? LogLevel::warning : LogLevel::info,
              fmt::format("UCX: {}", text.data()));
  } catch (...) {  // UCX is written in C, so nothing may be thrown through it.
  }
  return UCS_LOG_FUNC_RC_STOP;
}

UcxApi load() {
  // Another part of the program that has loaded UCX keeps its signal handlers.
  void* const loaded = ::dlopen(core_library, RTLD_NOLOAD | RTLD_LAZY);
  const internal::Library library(
      {"libucp.so.0"},
      "install UCX 1.10 or newer (Debian: libucx0) or put its folder into LD_LIBRARY_PATH");
  UcxApi api;
#define TUTTI_LOAD(field, function) library.load(api.field, #function);
  TUTTI_UCX_FUNCTIONS(TUTTI_LOAD)
#undef TUTTI_LOAD
  if (loaded != nullptr) {
    ::dlclose(loaded);
  } else if (std::getenv("UCX_ERROR_SIGNALS") == nullptr) {
    // The library installs these handlers when it is loaded. No part of tutti handles signals.
    for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) api.disable_signal(signal);
  }
  api.log_push_handler(log);
  return api;
}

}  // namespace

const UcxApi& ucx_api() {
  static const UcxApi api = load();
  return api;
}

void check(const UcxApi& api, ucs_status_t status, std::string_view call) {
  if (status != UCS_OK)
    internal::failf(Errc::backend, "ucx: {} failed: {}", call, api.status_string(status));
}

LogTo::LogTo(const Logger& logger) noexcept : before_(std::exchange(log_of_this_thread, &logger)) {}

LogTo::~LogTo() {
  log_of_this_thread = before_;
}

}  // namespace tutti::backend::ucx
