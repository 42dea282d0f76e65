#pragma once

#include <cstddef>
#include <memory>

namespace tutti::internal {

/// Uninitialised memory that the calls of a group use one after another.
class Scratch {
 public:
  /// The next call of this function may free the memory.
  std::byte* at_least(std::size_t bytes) {
    if (bytes > size_) {
      data_.reset();
      data_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      size_ = bytes;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t size_ = 0;
};

}  // namespace tutti::internal
