#include "c/guard.hpp"

#include <exception>
#include <optional>

#include <fmt/format.h>

#include <tutti/version.hpp>

#include "values/current_error.hpp"

namespace tutti::c_abi {
namespace {

thread_local std::optional<Error> last_error;
thread_local std::uint64_t errors = 0;

static_assert(status_of(Errc::invalid_argument) == TUTTI_INVALID_ARGUMENT &&
              status_of(Errc::count_overflow) == TUTTI_COUNT_OVERFLOW &&
              status_of(Errc::mismatch) == TUTTI_MISMATCH &&
              status_of(Errc::unsupported) == TUTTI_UNSUPPORTED &&
              status_of(Errc::not_initialized) == TUTTI_NOT_INITIALIZED &&
              status_of(Errc::timeout) == TUTTI_TIMEOUT &&
              status_of(Errc::peer_lost) == TUTTI_PEER_LOST &&
              status_of(Errc::aborted) == TUTTI_ABORTED &&
              status_of(Errc::resource_exhausted) == TUTTI_RESOURCE_EXHAUSTED &&
              status_of(Errc::forked) == TUTTI_FORKED && status_of(Errc::backend) == TUTTI_BACKEND);

constexpr bool is_error(tutti_status status) {
  return status >= TUTTI_INVALID_ARGUMENT && status <= TUTTI_BACKEND;
}
Errc code_of(tutti_status status) {
  return is_error(status) ? static_cast<Errc>(status - 1) : Errc::backend;
}

}  // namespace

tutti_status remember() noexcept {
  ++errors;
  last_error = internal::to_error(std::current_exception());
  return status_of(last_error->code());
}

std::uint64_t error_count() noexcept {
  return errors;
}

void check(tutti_status status, const char* function, std::uint64_t before) {
  if (status == TUTTI_OK) return;
  const auto code = code_of(status);
  if (errors > before && last_error->code() == code) throw Error(*last_error);
  fail(code, fmt::format("the caller's function {} returned {} ({})", function, status,
                         tutti_status_name(status)));
}

void fail_null(const char* what) {
  fail(Errc::invalid_argument, fmt::format("{} is null", what));
}

void check_struct(const void* from, std::size_t size, std::size_t known) {
  constexpr std::size_t most = 4096;  // More is memory that was never set.
  if (size < sizeof(size) || size > most)
    fail(Errc::invalid_argument,
         fmt::format("a struct has the size {}; set it with TUTTI_INIT", size));
  if (from == nullptr) return;
  const auto* bytes = static_cast<const std::byte*>(from);
  for (auto i = known; i < size; ++i)
    if (bytes[i] != std::byte{})
      fail(Errc::unsupported,
           fmt::format("a struct of {} bytes sets a field behind the {} bytes that this library "
                       "knows (tutti_abi_version() is {}); use the library of the header",
                       size, known, TUTTI_ABI_VERSION));
}

}  // namespace tutti::c_abi

using namespace tutti::c_abi;  // NOLINT(google-build-using-namespace)

extern "C" {

int32_t tutti_abi_version(void) {
  return TUTTI_ABI_VERSION;
}

const char* tutti_version(void) {
  return tutti::library_version_string().data();
}

const char* tutti_last_error(void) {
  return last_error ? last_error->what() : "";
}

tutti_status tutti_last_error_parts(tutti_error* parts) {
  try {
    tutti_error all{};
    all.rank = -1;
    all.seq = -1;
    all.group = all.operation = all.message = "";
    if (last_error) {
      const auto& where = last_error->where();
      all.code = status_of(last_error->code());
      all.rank = where.rank;
      all.seq = where.seq;
      all.group = where.group.c_str();
      all.operation = where.operation.c_str();
      all.message = last_error->message().c_str();
      all.missing = where.missing.data();
      all.missing_count = static_cast<std::int32_t>(where.missing.size());
      all.earlier = where.earlier ? 1 : 0;
    }
    write(parts, all);
    return TUTTI_OK;
  } catch (...) {
    // Not kept: it must not replace the error that the call reports.
    return status_of(tutti::internal::to_error(std::current_exception()).code());
  }
}

const char* tutti_status_name(tutti_status status) {
  if (status == TUTTI_OK) return "ok";
  return is_error(status) ? name_of(code_of(status)).data() : "unknown";
}

}  // extern "C"
