#pragma once

#include <string>
#include <string_view>

namespace tutti::tool {

/// A file that appears complete or not at all: written to a temporary file, then renamed.
class AtomicFile {
 public:
  /// Creates the temporary file. @throws Failure usage, naming the file, if it cannot be written.
  explicit AtomicFile(std::string path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();  ///< Without commit(): leaves no file.

  /// @throws Failure internal, naming the file.
  void commit(std::string_view text);

 private:
  std::string path_;
  std::string temporary_;
  int file_ = -1;  // -1: committed.
};

}  // namespace tutti::tool
