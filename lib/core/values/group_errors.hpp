#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <tutti/error.hpp>

#include "values/described.hpp"

namespace tutti::internal {

/// True for errors that break the group. Errors with other codes are found before data moves and
/// leave the group usable.
constexpr bool breaks_group(Errc code) noexcept {
  return code != Errc::invalid_argument && code != Errc::count_overflow &&
         code != Errc::unsupported && code != Errc::mismatch;
}

/// The error of a call on a group that broke earlier; its text has the cause. Returns `cause`
/// itself if it is such an error, or if there is no memory for the text. `group`: the call's; the
/// numbers of another one are not its own.
inline Error broken(const Error& cause, std::string_view group = {}) noexcept try {
  const auto& where = cause.where();
  if (where.earlier) return cause;
  const bool other = !group.empty() && !where.group.empty() && where.group != group;
  return {Errc::aborted,
          fmt::format("the group is broken, make a new one; first cause: {}", cause.what()),
          {.rank = other ? -1 : where.rank, .earlier = true}};
} catch (...) {
  return cause;
}

/// The error of a call that ended because its group broke: the cause itself if the cause belongs to
/// this call, if the program aborted the group or if ranks made different calls. A lost rank ends
/// all calls alike, so it is peer_lost in each of them. Otherwise broken(). `call`: the location of
/// the call.
inline Error ended_by(const Error& cause, const Error::Where& call = {}) noexcept {
  const auto& where = cause.where();
  const bool in_group = !call.operation.empty() && where.group == call.group;
  const bool own = in_group && where.seq == call.seq && where.operation == call.operation;
  const bool of_all = cause.code() == Errc::aborted || cause.code() == Errc::mismatch;
  if (own || of_all) return cause;
  if (!in_group || cause.code() != Errc::peer_lost) return broken(cause, call.group);
  return described(Errc::peer_lost, [&] {
    auto here = call;
    here.rank = where.rank;
    here.missing = where.missing;
    return Error(Errc::peer_lost, cause.message(), here);
  });
}

/// The text of an all_to_all whose counts differ between two ranks.
inline std::string rows_text(int from, int to, std::int64_t sent, std::int64_t expected) {
  return fmt::format(
      "rank {} sends {} rows to rank {}, which expects {}: send_rows[{}] of the sender and "
      "recv_rows[{}] of the receiver must be equal",
      from, sent, to, expected, to, from);
}

/// The error that breaks a group because a call with the error `why` has not ended on all ranks.
inline Error broken_by_refusal(const Error& why) noexcept try {
  return {why.code(),
          why.message() +
              "; the group is broken, because not all other ranks waited in the call "
              "in time",
          why.where()};
} catch (...) {
  return why;
}

/// The error of a call whose group is destroyed before the call ends. Allocates on first use.
inline const Error& group_destroyed() {
  static const Error error(Errc::aborted, "the group has been destroyed");
  return error;
}

}  // namespace tutti::internal
