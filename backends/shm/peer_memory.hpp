#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mapped_memory.hpp"
#include "rendezvous.hpp"

namespace tutti::backend::shm {

/// The segments of other ranks' mapped memory that this rank has mapped. For one thread at a time.
class PeerMemory {
 public:
  enum class State : std::uint8_t { unknown, mapped, refused };

  /// `made` must outlive this.
  explicit PeerMemory(const Membership& made) : made_(made), segments_(made.ids.size()) {}

  State state(int rank, const Location& location) const noexcept;
  /// Maps the segment of a location, until settle(). False if this rank cannot.
  bool map(int rank, const Location& location);
  /// Decides for all segments that were mapped, or not, since the last decision. All ranks decide
  /// the same.
  void settle(bool all_mapped) noexcept;
  /// The array at a mapped location; null if it does not fit into the segment.
  std::byte* data(int rank, const Location& location, std::size_t bytes) const noexcept;

 private:
  struct Known {
    std::uint32_t number;
    std::shared_ptr<Segment> memory;  // Null: refused.
    bool settled;
  };
  const Known* find(int rank, const Location& location) const noexcept;

  const Membership& made_;
  std::vector<std::vector<Known>> segments_;  // By rank.
};

}  // namespace tutti::backend::shm
