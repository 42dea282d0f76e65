#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include <tutti/device.hpp>
#include <tutti/tensor.hpp>
#include <tutti/work.hpp>

namespace tutti::ddp {

enum class Mark : std::uint8_t { none, ready, unused };

/// The state of a parameter in the current step.
struct Gradient {
  Mark mark = Mark::none;
  // The caller's, to which finish() writes the result; null if the gradient is in its bucket.
  TensorView array{};
  bool in_place = false;  // It is reduced in `array`, which has the result until the next step.
  std::optional<Stream> producer{};  // Kept from the last step: its copies may still run.
};

/// The state of a bucket in the current step. On a device, `works` may be the previous step's.
struct Launch {
  std::string name;
  std::size_t left = 0;  // Gradients not marked yet.
  std::optional<Stream> stream{};
  std::vector<Work> works{};

  void wait() {
    for (Work& work : works) work.wait();
  }
};

/// The arrays of a step's gradients that are not in their buckets.
class MarkedArrays {
 public:
  explicit MarkedArrays(std::size_t parameters) { arrays_.reserve(parameters); }
  void clear() noexcept { arrays_.clear(); }

  /// Adds the array, which is not empty. Returns the parameter whose array it overlaps, if any;
  /// then it is not added.
  std::optional<std::size_t> add(std::size_t id, const TensorView& array) {
    const auto begin = reinterpret_cast<std::uintptr_t>(array.data);
    const auto end = begin + array.bytes();
    const auto next = std::ranges::lower_bound(arrays_, begin, {}, &Entry::begin);
    if (next != arrays_.end() && next->begin < end) return next->id;
    if (next != arrays_.begin() && std::prev(next)->end > begin) return std::prev(next)->id;
    arrays_.insert(next, {begin, end, id});
    return std::nullopt;
  }

 private:
  struct Entry {
    std::uintptr_t begin;
    std::uintptr_t end;
    std::size_t id;
  };
  std::vector<Entry> arrays_;  // In the order of their addresses, without overlaps.
};

}  // namespace tutti::ddp
