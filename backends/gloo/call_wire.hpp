#pragma once

#include <cstdint>
#include <list>
#include <memory_resource>
#include <span>
#include <vector>

#include "collectives/wire.hpp"
#include "mesh.hpp"

namespace tutti::backend::gloo {

/// Memory that a group's calls use one after another.
class Scratch {
 public:
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

/// The messages of one collective over a mesh.
class CallWire final : public Wire {
 public:
  struct Place {
    Mesh& mesh;
    std::span<const int> ranks;  ///< Mesh ranks, by group rank.
    int rank = 0;
    std::uint64_t call = 0;  ///< Group::call_id().
    Scratch& scratch;
    std::pmr::memory_resource& pool;
  };
  /// `slot`: equal on all ranks, and of this call alone. `sizes_differ`: two ranks may disagree
  /// about a message's size without disagreeing about the call.
  CallWire(const Place& place, std::uint64_t slot, bool sizes_differ, Deadline limit)
      : place_(place),
        slot_(slot),
        sizes_differ_(sizes_differ),
        limit_(limit),
        sends_(&place.pool),
        recvs_(&place.pool) {}

  int rank() const noexcept override { return place_.rank; }
  int size() const noexcept override { return static_cast<int>(place_.ranks.size()); }
  void send(int to, const void* data, std::size_t bytes) override;
  void recv(int from, void* data, std::size_t bytes) override;
  void wait_recv() override;
  void wait_sends(std::size_t left) override;
  std::byte* scratch(std::size_t bytes) override { return place_.scratch.at_least(bytes); }

 private:
  std::uint64_t slot_of(std::size_t bytes) const noexcept;
  int mesh_rank(int rank) const noexcept { return place_.ranks[static_cast<std::size_t>(rank)]; }

  Place place_;
  std::uint64_t slot_;
  bool sizes_differ_;
  Deadline limit_;
  std::pmr::list<Mesh::Message> sends_;  // Oldest first.
  std::pmr::list<Mesh::Message> recvs_;
};

}  // namespace tutti::backend::gloo
