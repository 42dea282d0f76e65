#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "group_calls.hpp"
#include "mesh.hpp"

namespace tutti::backend::mesh {

/// The ranks of a group on a mesh. Shared by the backend and by Works that outlive it.
struct Group {
  std::shared_ptr<Mesh> mesh;
  std::string name;  ///< Unique on the mesh.
  internal::GroupNames names;
  int rank = 0;
  std::vector<int> ranks;               ///< Mesh ranks, by group rank.
  std::shared_ptr<GroupCalls> calls{};  ///< Null in a group of one.

  /// Makes `calls`.
  void remember_calls() { calls = std::make_shared<GroupCalls>(name, names, rank, ranks); }
  int size() const noexcept { return static_cast<int>(ranks.size()); }
  int mesh_rank(int group_rank) const noexcept {
    return ranks[static_cast<std::size_t>(group_rank)];
  }
  /// The id of a call for refusals: of a collective by its number, which is one for all parts of a
  /// call (WholeGroup::part_bits), or of a send and its receive.
  std::uint64_t call_id(const Call& call) const noexcept;
  std::uint64_t pair_id(const Op& op) const noexcept;
  /// The slot of a collective's messages: equal on all ranks, different for every call of every
  /// group, and different on ranks that made different calls before. `index`: the operation's index
  /// in the call. `before`: CallHistory::before().
  std::uint64_t slot(const Call& call, std::size_t index, std::uint64_t before) const noexcept;
  /// The slot of a send and its receive.
  std::uint64_t pair_slot(const Op& op) const noexcept;

  /// Returns the error of a call that ended with a transport error. Fails the mesh, unless a peer
  /// refused the call and all of its ranks have left it, or it is a part of a call, which abandon()
  /// ends. Called before the call's messages are destroyed.
  Error failed(const TransportError& transport_error, std::span<const Op> ops,
               const Call& call) const noexcept;
  /// The cause of the mesh's failure. If a member was lost, with its rank in this group; if a rank
  /// that is no member, without a rank.
  Error in_own_ranks(const Error& cause) const noexcept;
  /// The reverse: an error of this group, as it fails the mesh.
  Error in_mesh_ranks(const Error& own) const noexcept;
  /// Ends a refused collective; none of its bytes arrives later. Returns false if that fails within
  /// 1.5 s, or 0.5 s of a difference that was found.
  bool abandon(const Call& call) const noexcept;

 private:
  internal::Failure failure_of(const TransportError& transport_error, std::span<const Op> ops,
                               const Call& call) const;
  Error refused(std::span<const Op> ops, const Call& call, bool pair) const noexcept;
};

}  // namespace tutti::backend::mesh
