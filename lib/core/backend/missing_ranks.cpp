#include "backend/missing_ranks.hpp"

#include <fmt/format.h>

#include "backend/record.hpp"

namespace tutti::internal {

Error with_message(const Error& error, Errc code, int rank, const std::string& message,
                   const std::vector<int>& absent) {
  auto where = error.where();
  where.rank = rank;
  where.missing = absent;
  return {code, message, where};
}

Error name_missing(const Error& cause, std::span<const Presence> ranks, std::string_view called,
                   const GroupNames& names) {
  std::vector<int> entered;
  std::vector<int> absent;
  std::string missing;
  int origin = -1;
  bool origin_waits = false;
  int first_left = -1;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto& rank = ranks[i];
    const int number = names(static_cast<int>(i));
    if (rank.entered) {
      entered.push_back(number);
      continue;
    }
    absent.push_back(number);
    const bool waits = !rank.left && !rank.last.empty();
    if (origin < 0 || (origin_waits && !waits)) {
      origin = number;
      origin_waits = waits;
    }
    if (rank.left && cause.code() == Errc::peer_lost && first_left < 0) first_left = number;
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", number);
    if (rank.left)
      missing += " (has left the group)";
    else if (!rank.last.empty())
      missing += fmt::format(" ({})", rank.last);
  }
  if (missing.empty())
    return with_message(cause, cause.code(), cause.where().rank,
                        fmt::format("{}; all ranks have entered, so the call is slower than the "
                                    "deadline allows, or a rank or its device has stopped",
                                    cause.message()));
  return with_message(
      cause, cause.code(), first_left < 0 ? origin : first_left,
      fmt::format("{}; entered: {}; missing: {}{}{}", cause.message(), list_ranks(entered), missing,
                  called.empty() ? "" : "; called: ", called),
      absent);
}

}  // namespace tutti::internal
