#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tutti::tool {

/// A destination of lines: a descriptor and the bytes that it has not accepted yet. Writes at most
/// the bytes that a pipe accepts without blocking after poll() has reported it as writable.
class Sink {
 public:
  explicit Sink(int descriptor);

  int descriptor() const noexcept { return descriptor_; }
  std::string& waiting() noexcept { return waiting_; }
  bool empty() const noexcept { return written_ == waiting_.size(); }
  /// True if too many bytes wait; the sources should then not be read.
  bool full() const noexcept { return waiting_.size() - written_ > full_bytes; }
  /// True if the reader has closed its end.
  bool broken() const noexcept { return broken_; }
  void write_some();

 private:
  static constexpr std::size_t full_bytes = std::size_t{1} << 20;

  int descriptor_;
  std::size_t chunk_bytes_;
  std::string waiting_{};
  std::size_t written_ = 0;  // Bytes of waiting_.
  bool broken_ = false;
};

/// Prefixes every line of one stream. Accepts any bytes; only '\n' ends a line. A line of more than
/// 64 KiB is cut into several.
class Prefixer {
 public:
  static constexpr std::size_t longest_line = std::size_t{64} << 10;

  explicit Prefixer(std::string prefix) : prefix_(std::move(prefix)) {}
  /// Takes more bytes of the stream and appends the complete lines to `out`.
  void take(std::string_view bytes, std::string& out);
  /// Ends the stream; its last line gets the missing newline.
  void finish(std::string& out);

 private:
  void put(std::string_view rest, std::string& out);

  std::string prefix_;
  std::string line_{};  // The beginning of an incomplete line.
};

}  // namespace tutti::tool
