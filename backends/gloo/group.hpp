#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include "collectives/wire.hpp"
#include "mesh.hpp"

namespace tutti::backend::gloo {

/// A group's place on a mesh. Shared by the backend and by Works that outlive it.
struct Group {
  std::shared_ptr<Mesh> mesh;
  std::string name;
  int rank = 0;
  std::vector<int> ranks;  ///< Mesh ranks, by group rank.

  int size() const noexcept { return static_cast<int>(ranks.size()); }
  int mesh_rank(int group_rank) const noexcept {
    return ranks[static_cast<std::size_t>(group_rank)];
  }
  /// A collective, whatever this rank thinks it is; and a send with its receive.
  std::uint64_t call_id(const Call& call) const noexcept;
  std::uint64_t pair_id(const Op& op) const noexcept;
  /// The slot in which the messages of a collective meet: equal on all ranks, different for every
  /// call of every group. `index`: of the operation in the call.
  std::uint64_t slot(const Call& call, std::size_t index) const noexcept;
  /// The slot of a send and its receive.
  std::uint64_t pair_slot(const Op& op) const noexcept;

  /// The error of a call that ended in trouble. Fails the mesh, unless a peer refused the call.
  /// The call's messages still exist.
  Error failed(const Trouble& trouble, std::span<const Op> ops, const Call& call) const noexcept;

 private:
  Error refused(std::span<const Op> ops, const Call& call, bool pair) const noexcept;
  /// Ends a refused collective together with the other ranks that are in it, so that no byte of it
  /// comes later. False: not all ranks are in it within 2 s.
  bool abandon(const Call& call) const noexcept;
};

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

/// The messages of one collective of a group.
class CallWire final : public collectives::Wire {
 public:
  /// Of operation `index` of the call. `sizes_differ`: two ranks may disagree about a message's
  /// size without disagreeing about the call.
  CallWire(const Group& group, const Call& call, std::size_t index, bool sizes_differ,
           Scratch& scratch, std::pmr::memory_resource& pool)
      : group_(group),
        call_(group.call_id(call)),
        slot_(group.slot(call, index)),
        sizes_differ_(sizes_differ),
        limit_(call.limit()),
        scratch_(scratch),
        sends_(&pool),
        recvs_(&pool) {}

  int rank() const noexcept override { return group_.rank; }
  int size() const noexcept override { return group_.size(); }
  void send(int to, const void* data, std::size_t bytes) override;
  void recv(int from, void* data, std::size_t bytes) override;
  void wait_recv() override;
  void wait_sends(std::size_t left) override;
  std::byte* scratch(std::size_t bytes) override { return scratch_.at_least(bytes); }

 private:
  std::uint64_t slot_of(std::size_t bytes) const noexcept;

  const Group& group_;
  std::uint64_t call_;
  std::uint64_t slot_;
  bool sizes_differ_;
  Deadline limit_;
  Scratch& scratch_;
  std::pmr::list<Mesh::Message> sends_;  // Oldest first.
  std::pmr::list<Mesh::Message> recvs_;
};

}  // namespace tutti::backend::gloo
