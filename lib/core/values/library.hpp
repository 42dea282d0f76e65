#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::internal {

/// A shared library that is opened on demand and never closed, because the library's threads may
/// run until the process ends.
class Library {
 public:
  /// Opens the first of `names` that this process has loaded already, or else the first that can be
  /// loaded: a second copy of a library would have a state of its own. @throws Error unsupported if
  /// none can; its text ends with `install`, the remedy.
  Library(const std::vector<const char*>& names, std::string_view install);
  /// Returns a symbol's address. @throws Error unsupported if there is none; its text names the
  /// symbol.
  void* symbol(const char* name) const;
  /// Null when there is none.
  void* find(const char* name) const noexcept;
  template <typename Function>
  void load(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }
  /// Sets `function` to null if the library has no such symbol.
  template <typename Function>
  void load_if_there(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(find(name));
  }

 private:
  void* handle_ = nullptr;
  std::string name_;
  std::string install_;
};

}  // namespace tutti::internal
