#pragma once

#include <concepts>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>

#include <tutti/backend/op.hpp>
#include <tutti/error.hpp>

#include "values/current_error.hpp"

namespace tutti::internal {

/// The part of a call that checks this rank's arguments, allocates its results and sets the arrays
/// of the Op.
///
/// If it throws an Error, the front refuses the call on this rank, tells the peers and throws the
/// Error; bad_alloc counts as resource_exhausted. Refers to a function, which must outlive the
/// Prepare.
class Prepare {
 public:
  Prepare() = default;
  template <std::invocable<Op&> F>
  requires(!std::same_as<std::remove_cvref_t<F>, Prepare>) Prepare(F&& function)
  noexcept
      : function_(const_cast<void*>(static_cast<const void*>(std::addressof(function)))),
        run_([](void* f, Op& op) { (*static_cast<std::remove_reference_t<F>*>(f))(op); }) {}

  explicit operator bool() const noexcept { return run_ != nullptr; }
  void operator()(Op& op) const { run_(function_, op); }

 private:
  void* function_ = nullptr;
  void (*run_)(void*, Op&) = nullptr;
};

/// Runs `check`. Returns the Error with which the call is refused; empty if `check` did not throw.
/// An exception of another type is converted, so that the call still takes its number.
template <typename Check>
std::optional<Error> refusal_of(const Check& check) {
  try {
    check();
  } catch (const std::bad_alloc&) {
    return described(Errc::resource_exhausted, [] {
      return Error(Errc::resource_exhausted, "this rank cannot allocate memory for the call");
    });
  } catch (...) {
    return to_error(std::current_exception());
  }
  return std::nullopt;
}

}  // namespace tutti::internal
