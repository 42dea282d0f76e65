#pragma once

#include <exception>
#include <new>

#include <tutti/error.hpp>

#include "values/described.hpp"

namespace tutti::internal {

/// Converts any exception to an Error. One of another type becomes Errc::backend with its text, or
/// Errc::resource_exhausted if memory ran out.
inline Error to_error(const std::exception_ptr& thrown) noexcept {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::exception& error) {
    return described(Errc::backend, [&] { return Error(Errc::backend, error.what()); });
  } catch (...) {
    return described(Errc::backend, [] {
      return Error(Errc::backend, "an exception that is not a std::exception");
    });
  }
}

}  // namespace tutti::internal
