#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/agreement.hpp"
#include "backend/call_history.hpp"
#include "backend/group_names.hpp"

namespace tutti::backend::mesh {

/// The last sends and receives that this rank has posted on a group, for a peer that waits for the
/// other side of one. Called from any thread; find() does not wait for the others.
class PostedMessages {
 public:
  void add(std::uint64_t pair, const Op& op) noexcept;
  /// Forgets a message that was not posted after all.
  void remove(std::uint64_t pair) noexcept;
  /// Returns the message of this pair, if it is among the last 64. Its text names the ranks with
  /// `names`.
  std::optional<internal::MessageSide> find(std::uint64_t pair,
                                            const internal::GroupNames& names) const;

 private:
  static constexpr std::size_t length = 64;
  // A sequence lock: `version` is the index + 1, and 0 during a write.
  struct Slot {
    std::atomic<std::uint64_t> version{0};
    std::atomic<std::uint64_t> pair{0};
    std::atomic<std::uint64_t> fingerprint{0};
    std::atomic<std::uint64_t> what{0};  // Operation, dtype and peer.
    std::atomic<std::uint64_t> tag{0};
    std::atomic<std::int64_t> count{0};
  };
  std::mutex writer_;
  std::atomic<std::uint64_t> next_{0};
  std::array<Slot, length> slots_;
};

/// The calls of this rank on a group, which peers compare with theirs. Does not own the mesh, so
/// that the thread which compares never destroys it.
struct GroupCalls : std::enable_shared_from_this<GroupCalls> {
  GroupCalls(std::string n, internal::GroupNames shown, int rank, std::vector<int> mesh_ranks)
      : name(std::move(n)),
        names(std::move(shown)),
        ranks(std::move(mesh_ranks)),
        history(has_of_whole() ? names.whole()->history
                               : std::make_shared<internal::CallHistory>(names, rank)) {}

  /// Records a call, unless the whole group has. Returns CallHistory::before().
  std::uint64_t begin(std::span<const Op> ops, const Call& call) const noexcept {
    return has_of_whole() ? history->before() : history->begin(ops, call);
  }
  /// False also for a part of a group whose backend keeps no history.
  bool has_of_whole() const noexcept {
    return names.is_part() && names.whole()->history != nullptr;
  }

  std::string name;  ///< Unique on the mesh.
  internal::GroupNames names;
  std::vector<int> ranks;                                ///< Mesh ranks, by group rank.
  const std::shared_ptr<internal::CallHistory> history;  ///< Of a part: of the whole group.
  PostedMessages posted{};
};

}  // namespace tutti::backend::mesh
