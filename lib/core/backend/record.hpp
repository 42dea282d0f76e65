#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <tutti/backend/backend.hpp>

#include "backend/group_names.hpp"
#include "values/bytes.hpp"
#include "values/described.hpp"

namespace tutti::internal {

/// "all_reduce sum f32 [4]", "send f32 [2, 3] to 1 tag 0"; for several operations, the first ones.
std::string describe(std::span<const Op> ops, const Call& call, const GroupNames& names = {});
std::string describe(const Op& op, const GroupNames& names = {});

/// True if one of the operations is a collective. The call then has a number.
bool has_collective(std::span<const Op> ops) noexcept;

/// The name of a launch's first collective, which is the same on all ranks; if there is none, of
/// its first message; "coalesced call" for an empty launch.
std::string_view operation_of(std::span<const Op> ops) noexcept;

/// An error with the location of this call. `rank`: the rank of the group that caused the error.
Error call_error(Errc code, const GroupNames& names, std::span<const Op> ops, const Call& call,
                 int rank, const std::string& message);
/// The same in a place that must not throw: `text` makes the message.
template <std::invocable Text>
Error call_error(Errc code, const GroupNames& names, std::span<const Op> ops, const Call& call,
                 int rank, const Text& text) noexcept {
  return described(code, [&] { return call_error(code, names, ops, call, rank, text()); });
}

/// Returns `error` with the location of this call, unless it already has a location or there is no
/// memory for it. `rank`: the rank of the group that caused it, unless the error names one or
/// is of a group that broke before. An error of another group names no rank of this one.
Error with_location(const Error& error, const GroupNames& names, std::span<const Op> ops,
                    const Call& call, int rank) noexcept;

/// A rank's description of its call, which it publishes so that ranks can be compared. The text is
/// cut off to fit.
struct Record {
  static constexpr std::uint32_t version = 1;
  std::uint32_t format = version;
  std::uint32_t refused = 0;  ///< 1: the text is a refusal's reason. 0: the text is the call.
  std::uint64_t seq = 0;
  std::uint64_t fingerprint = 0;
  std::array<char, 232> text{};

  static Record of(std::span<const Op> ops, const Call& call);
  static Record refusal(std::span<const Op> ops, const Call& call, const Error& why);
  std::string_view view() const noexcept;
};

/// Encodes a record for peers, and decodes it. @throws Error of the reader; mismatch for a record
/// of another version.
void write(Writer& out, const Record& record);
Record read_record(Reader& in);

/// Compares the records of all ranks. Empty if they agree; otherwise the error that every rank
/// throws, with the same text.
std::optional<Error> compare(const GroupNames& names, std::span<const Op> ops, const Call& call,
                             std::span<const Record> records);

/// The error of all ranks if rank `from` sends `sent` rows to rank `to`, which expects `expected`
/// rows.
Error rows_error(const GroupNames& names, std::span<const Op> ops, const Call& call, int from,
                 int to, std::int64_t sent, std::int64_t expected);

/// Compares the counts of an all_to_all. Fingerprints leave them out, because only two ranks know
/// each count. sent(from, to): the rows that `from` sends; expected(from, to): the rows that `to`
/// expects. Empty if they agree.
template <typename Sent, typename Expected>
std::optional<Error> compare_rows(const GroupNames& names, std::span<const Op> ops,
                                  const Call& call, int size, const Sent& sent,
                                  const Expected& expected) {
  for (int from = 0; from < size; ++from)
    for (int to = 0; to < size; ++to)
      if (sent(from, to) != expected(from, to))
        return rows_error(names, ops, call, from, to, sent(from, to), expected(from, to));
  return std::nullopt;
}

/// The error on peers of `rank`, which refused the call. `why`: its refusal_text().
Error refused_error(const GroupNames& names, std::span<const Op> ops, const Call& call, int rank,
                    std::string_view why);

/// The text of a refusal for peers: "all_reduce #17: the array is null".
std::string refusal_text(std::span<const Op> ops, const Call& call, const Error& why);

/// The text of a mismatch between a send and its recv.
std::string sides_text(const GroupNames& names, int sender, std::string_view send, int receiver,
                       std::string_view recv);

/// Calls `tell(ops, call)` for each part of a launch for which separate peers wait: every send and
/// receive with its number and fingerprint, then all collectives together (`ops` unchanged).
template <typename Tell>
void for_each_part(std::span<const Op> ops, const Call& call, const Tell& tell) {
  for (const auto& op : ops) {
    if (!is_point_to_point(op.kind)) continue;
    Call own = call;
    own.seq = op.seq;
    own.fingerprint = op.fingerprint;
    tell(std::span(&op, 1), own);
  }
  if (has_collective(ops)) tell(ops, call);
}

/// "0", "0 2 3".
std::string list_ranks(std::span<const int> ranks, const GroupNames& names = {});

}  // namespace tutti::internal
