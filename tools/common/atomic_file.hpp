#pragma once

#include <string>
#include <string_view>

namespace tutti::tool {

/// A file that appears whole or not at all: written beside its place, then renamed over it.
class AtomicFile {
 public:
  /// Checks that the place can be written.
  /// @throws Failure usage, naming the file.
  explicit AtomicFile(std::string path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();  ///< Without commit() nothing is left.

  /// @throws Failure internal, naming the file.
  void commit(std::string_view text);

 private:
  std::string path_;
  std::string temporary_;
  int file_ = -1;  // -1: committed.
};

}  // namespace tutti::tool
