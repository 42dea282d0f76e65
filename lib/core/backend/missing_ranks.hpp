#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/error.hpp>

#include "backend/group_names.hpp"

namespace tutti::internal {

/// The state of a rank when a call reached its deadline.
struct Presence {
  bool entered = false;  ///< The rank is in the call.
  bool left = false;
  std::string last{};  ///< The last call that it published; may be empty.
};

/// Returns `cause` with the entered and the missing ranks in its text, in the same form for all
/// backends. `ranks`: one per rank of the group `names`. Error::Where names the first missing rank
/// that is in no other call, if there is one; for peer_lost a rank that left, if one has. `called`:
/// the call as text; may be empty.
Error name_missing(const Error& cause, std::span<const Presence> ranks, std::string_view called,
                   const GroupNames& names = {});

/// Returns an error of the same call with these.
Error with_message(const Error& error, Errc code, int rank, const std::string& message,
                   const std::vector<int>& absent = {});

}  // namespace tutti::internal
