#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tutti::tool {

/// Where lines go: a descriptor and what it has not taken yet. Writes no more at a time than the
/// descriptor takes without blocking, once poll() has said that it takes something.
class Sink {
 public:
  explicit Sink(int descriptor);

  int descriptor() const noexcept { return descriptor_; }
  std::string& waiting() noexcept { return waiting_; }
  bool empty() const noexcept { return written_ == waiting_.size(); }
  /// So much waits that its sources should not be read for now.
  bool full() const noexcept { return waiting_.size() - written_ > full_bytes; }
  /// Its reader has gone.
  bool broken() const noexcept { return broken_; }
  void write_some();

 private:
  static constexpr std::size_t full_bytes = std::size_t{1} << 20;

  int descriptor_;
  std::size_t chunk_bytes_;
  std::string waiting_{};
  std::size_t written_ = 0;  // Of waiting_.
  bool broken_ = false;
};

/// Puts a prefix in front of every line of one stream. Any bytes; only '\n' ends a line. A line of
/// more than 64 KiB is cut into several.
class Prefixer {
 public:
  static constexpr std::size_t longest_line = std::size_t{64} << 10;

  explicit Prefixer(std::string prefix) : prefix_(std::move(prefix)) {}
  /// Appends to `out` the lines that are whole now.
  void take(std::string_view bytes, std::string& out);
  /// The stream has ended: its last line gets the newline that it lacks.
  void finish(std::string& out);

 private:
  void put(std::string_view rest, std::string& out);

  std::string prefix_;
  std::string line_{};  // What there is of a line whose end has not come.
};

}  // namespace tutti::tool
