#pragma once

#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::test {

/// Sets environment variables for one test, or removes them where the value is null. The destructor
/// restores the old values.
class ScopedVariables {
 public:
  using Variable = std::pair<const char*, const char*>;

  ScopedVariables() = default;
  ScopedVariables(std::initializer_list<Variable> variables) {
    for (const auto& [name, value] : variables) set(name, value);
  }
  ~ScopedVariables() {
    for (auto old = old_.rbegin(); old != old_.rend(); ++old)
      put(old->first, old->second ? old->second->c_str() : nullptr);
  }
  ScopedVariables(const ScopedVariables&) = delete;
  ScopedVariables& operator=(const ScopedVariables&) = delete;

  void set(const char* name, const char* value) {
    const char* old = std::getenv(name);
    old_.emplace_back(name, old == nullptr ? std::nullopt : std::optional<std::string>(old));
    put(name, value);
  }

 private:
  static void put(const char* name, const char* value) {
    if (value == nullptr)
      ::unsetenv(name);
    else
      ::setenv(name, value, 1);
  }
  std::vector<std::pair<const char*, std::optional<std::string>>> old_;
};

}  // namespace tutti::test
