#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <tutti/rows.hpp>

#include "levels.hpp"

// Large arrays move in chunks, and each chunk in slices, one for each lane.

namespace tutti::backend::hier {

/// Arrays up to this size use one lane, because every message has a fixed cost.
inline constexpr std::size_t small_bytes = std::size_t{32} << 10;
/// The bytes that a lane moves at a time.
inline constexpr std::size_t slice_bytes = std::size_t{1} << 20;

/// The division of `count` elements into chunks, and of a chunk into a slice per lane.
class Chunks {
 public:
  struct Piece {
    std::size_t from;
    std::size_t count;
  };

  Chunks(const Topology& topology, std::size_t count, std::size_t element)
      : Chunks(lanes_for(topology, count * element), count, element) {}
  Chunks(int lanes, std::size_t count, std::size_t element)
      : count_(count),
        lanes_(static_cast<std::size_t>(lanes)),
        chunk_(lanes_ * (slice_bytes / element)) {}

  static int lanes_for(const Topology& topology, std::size_t bytes) {
    return bytes <= small_bytes ? 1 : topology.lanes();
  }

  int lanes() const { return static_cast<int>(lanes_); }
  std::size_t size() const { return std::max<std::size_t>(1, (count_ + chunk_ - 1) / chunk_); }
  std::size_t most_in_slice() const { return chunk_ / lanes_; }
  Piece chunk(std::size_t t) const {
    const auto from = std::min(count_, t * chunk_);
    return {from, std::min(chunk_, count_ - from)};
  }
  /// Slice k of chunk t; `from` counts from the first element of all. Empty if there is no lane k.
  Piece slice(std::size_t t, int k) const {
    const auto [from, count] = chunk(t);
    const auto i = std::min(static_cast<std::size_t>(k), lanes_);
    const auto begin = cut(count, i);
    return {from + begin, i == lanes_ ? 0 : cut(count, i + 1) - begin};
  }

 private:
  std::size_t cut(std::size_t count, std::size_t i) const {
    return count / lanes_ * i + std::min(i, count % lanes_);
  }

  std::size_t count_;
  std::size_t lanes_;
  std::size_t chunk_;  // Elements.
};

/// The blocks of the ranks by host: their counts, and the division of each host's blocks into
/// chunks.
class HostBlocks {
 public:
  /// A row has `row` elements of `element` bytes.
  HostBlocks(const Topology& topology, const Rows& rows, std::size_t row, std::size_t element)
      : topology_(topology), offsets_{0}, counts_(static_cast<std::size_t>(topology.hosts()), 0) {
    for (int r = 0; r < topology.size(); ++r) {
      const auto block = static_cast<std::size_t>(rows[r]) * row;
      offsets_.push_back(offsets_.back() + block);
      counts_[static_cast<std::size_t>(topology.host_of(r))] += block;
    }
    lanes_ = Chunks::lanes_for(topology, offsets_.back() * element);
    for (const auto count : counts_) chunks_.emplace_back(lanes_, count, element);
    largest_ = *std::ranges::max_element(counts_);
    for (const auto& chunks : chunks_) size_ = std::max(size_, chunks.size());
  }

  int lanes() const { return lanes_; }
  std::size_t size() const { return size_; }  ///< Number of chunks.
  std::size_t offset(int rank) const { return offsets_[static_cast<std::size_t>(rank)]; }
  std::size_t block(int rank) const { return offset(rank + 1) - offset(rank); }
  std::size_t total() const { return offsets_.back(); }
  std::size_t count(std::size_t host) const { return counts_[host]; }
  const Chunks& chunks(std::size_t host) const { return chunks_[host]; }
  /// True if the host's blocks are one range of the array of all ranks, which begins at range().
  bool is_range(std::size_t host) const {
    const auto& ranks = topology_.ranks_of(static_cast<int>(host));
    return ranks.back() - ranks.front() + 1 == std::ssize(ranks);
  }
  std::size_t range(std::size_t host) const {
    return offset(topology_.ranks_of(static_cast<int>(host)).front());
  }
  /// The most elements of a lane's slices of one chunk of all hosts.
  std::size_t most_in_lane() const {
    return counts_.size() * std::min(largest_, chunks_[0].most_in_slice());
  }

 private:
  const Topology& topology_;
  std::vector<std::size_t> offsets_;
  std::vector<std::size_t> counts_;  // By host.
  std::vector<Chunks> chunks_;       // By host.
  std::size_t largest_ = 0;
  std::size_t size_ = 1;
  int lanes_ = 1;
};

}  // namespace tutti::backend::hier
