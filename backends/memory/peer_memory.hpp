#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/log.hpp>

#include "mapped_memory.hpp"
#include "membership.hpp"

namespace tutti::backend::memory {

/// The segments of other ranks' mapped memory that this rank has mapped. A segment that a rank
/// cannot map is refused by all ranks for some calls, which double, and then tried again: the lack
/// of descriptors or memory may have ended. For one thread at a time.
class PeerMemory {
 public:
  enum class State : std::uint8_t { unknown, mapped, refused };

  /// `made` must outlive this. `logger` gets the first error.
  PeerMemory(const Membership& made, std::string group, Logger logger)
      : made_(made),
        group_(std::move(group)),
        logger_(std::move(logger)),
        segments_(made.ids.size()) {}

  /// Counts the calls with such arrays, equally on all ranks.
  void begin_call() noexcept { ++calls_; }
  State state(int rank, const Location& location) const noexcept;
  /// Maps the segment of a location whose state is unknown, until settle(). False if this rank
  /// cannot.
  bool map(int rank, const Location& location);
  /// Decides for a segment whose state is unknown. All ranks decide the same.
  void settle(int rank, const Location& location, bool all_mapped) noexcept;
  /// The array at a mapped location; null if it does not fit into the segment.
  std::byte* data(int rank, const Location& location, std::size_t bytes) const noexcept;

 private:
  struct Known {
    std::uint32_t number;
    std::shared_ptr<Segment> memory{};  // Null: this rank or another one could not map it.
    bool settled = false;
    int failures = 0;
    std::uint64_t again = 0;  // The call that tries again.
  };
  const Known* find(int rank, const Location& location) const noexcept;
  Known* find(int rank, const Location& location) noexcept;
  void forget_retired(int rank) noexcept;
  void warn(int rank, const std::string& why) noexcept;

  const Membership& made_;
  const std::string group_;
  const Logger logger_;
  std::uint64_t calls_ = 0;
  bool warned_ = false;
  std::vector<std::vector<Known>> segments_;  // By rank.
};

}  // namespace tutti::backend::memory
