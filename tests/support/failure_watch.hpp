#pragma once

#include <exception>
#include <string>

#include <fmt/format.h>

#include <tutti/error.hpp>

namespace tutti::test {

/// True if an ASSERT or a FAIL() failed on this thread since this was made.
class FailureWatch {
 public:
  FailureWatch() noexcept;
  bool fatal() const noexcept;

 private:
  int before_;
};

inline std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return fmt::format("{}: {}", name_of(e.code()), e.what());
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "something that is no exception";
  }
}

}  // namespace tutti::test
