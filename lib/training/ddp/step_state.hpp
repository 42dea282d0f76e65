#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include <tutti/device.hpp>
#include <tutti/tensor.hpp>

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

/// The arrays of a step's gradients that are not in their buckets. An array that is reduced in
/// place overlaps no other.
class MarkedArrays {
 public:
  explicit MarkedArrays(std::size_t parameters) {
    in_place_.reserve(parameters);
    copied_.reserve(parameters);
  }
  void clear() noexcept {
    in_place_.clear();
    copied_.clear();
  }

  /// Adds the array, which is not empty. Returns the parameter whose array must not overlap it but
  /// does, if any; then the array is not added.
  std::optional<std::size_t> add(std::size_t id, const TensorView& array, bool in_place) {
    const auto begin = reinterpret_cast<std::uintptr_t>(array.data);
    const Entry mine{begin, begin + array.bytes(), id};
    const auto next = std::ranges::lower_bound(in_place_, begin, {}, &Entry::begin);
    if (next != in_place_.end() && next->begin < mine.end) return next->id;
    if (next != in_place_.begin() && std::prev(next)->end > begin) return std::prev(next)->id;
    if (!in_place) {
      copied_.push_back(mine);
      return std::nullopt;
    }
    const auto other = std::ranges::find_if(
        copied_, [&](const Entry& e) { return e.begin < mine.end && begin < e.end; });
    if (other != copied_.end()) return other->id;
    in_place_.insert(next, mine);
    return std::nullopt;
  }

 private:
  struct Entry {
    std::uintptr_t begin;
    std::uintptr_t end;
    std::size_t id;
  };
  std::vector<Entry> in_place_;  // In the order of their addresses, without overlaps.
  std::vector<Entry> copied_;
};

}  // namespace tutti::ddp
