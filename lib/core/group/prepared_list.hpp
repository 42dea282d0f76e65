#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tutti/prepared.hpp>

#include "group/core.hpp"

namespace tutti::internal {

/// The collectives of a Prepared on one group.
class PreparedList {
 public:
  /// Copies `ops`, which were checked, with their row lists. `options`: of the first one.
  PreparedList(std::shared_ptr<Core> core, std::span<const Op> ops, const CallOptions& options);
  PreparedList(const PreparedList&) = delete;
  PreparedList& operator=(const PreparedList&) = delete;
  ~PreparedList();

  /// @throws Error invalid_argument while a Coalesce of this thread collects on the group.
  void check_not_collecting() const;
  Work launch(const CallOptions& options);
  /// Breaks the group, whose peers make a launch that this rank will not make.
  void break_with(const Error& cause) noexcept { core_->break_with(cause, false); }

 private:
  std::shared_ptr<Core> core_;
  std::vector<Op> ops_;
  std::vector<std::int64_t> rows_;
  std::string name_;
  std::unique_ptr<Kept> kept_;  // After core_: destroyed before the backend.
  Call call_;                   // What all launches share.
};

}  // namespace tutti::internal

namespace tutti {

struct Prepared::Impl {
  std::deque<internal::PreparedList> lists;  // One for each group with calls; they do not move.
};

}  // namespace tutti
