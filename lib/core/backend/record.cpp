#include "backend/record.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "backend/fingerprint.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"

namespace [[gnu::visibility("default")]] tutti {

std::string_view name_of(Operation operation) noexcept {
  constexpr std::array<std::string_view, operation_count> names{
      "all_reduce",     "broadcast",  "reduce", "all_gather", "all_gather_bounded",
      "reduce_scatter", "all_to_all", "gather", "scatter",    "scan",
      "exclusive_scan", "barrier",    "send",   "recv"};
  if (operation == Operation::recv_any) return "recv_any";
  const auto index = static_cast<std::size_t>(operation);
  return index < names.size() ? names[index] : "unknown operation";
}

}  // namespace tutti

namespace tutti::internal {
namespace {

std::string describe_rows(const Rows& rows) {
  if (!rows.listed()) return fmt::format("rows {} each", rows[0]);
  constexpr std::size_t shown = 8;
  const auto list = rows.list();
  return fmt::format("rows {{{}{}}}", fmt::join(list.first(std::min(shown, list.size())), ", "),
                     list.size() > shown ? ", ..." : "");
}

}  // namespace

std::string describe(const Op& op, const GroupNames& names) {
  std::string text(name_of(op.kind));
  if (op.kind == Operation::barrier) return text;
  if (is_reduction(op.kind)) text += fmt::format(" {}", name_of(op.reduce.kind));
  if (is_reduction(op.kind) && op.reduce.commutative) text += " commutative";
  if (op.reproducible) text += " reproducible";
  const bool by_out = op.kind == Operation::recv || op.kind == Operation::scatter ||
                      op.kind == Operation::reduce_scatter;
  text += fmt::format(" {} {}", name_of(by_out ? op.out.dtype : op.in.dtype),
                      to_string(by_out ? op.out.shape : op.in.shape));
  if (op.rows.given() && op.kind != Operation::all_to_all) text += ' ' + describe_rows(op.rows);
  if (op.root >= 0) text += fmt::format(" root {}", names(op.root));
  if (is_point_to_point(op.kind))
    text += fmt::format(" {} {} tag {}", op.kind == Operation::send ? "to" : "from",
                        op.peer == any_peer ? "any_peer" : std::to_string(names(op.peer)), op.tag);
  return text;
}

std::string describe(std::span<const Op> ops, const Call& call, const GroupNames& names) {
  std::string text;
  if (ops.size() == 1) {
    text = describe(ops[0], names);
  } else {
    text = fmt::format("{} coalesced: {}", ops.size(), describe(ops[0], names));
    if (ops.size() > 1) text += fmt::format("; {}", describe(ops[1], names));
    if (ops.size() > 2) text += "; ...";
  }
  if (call.order_fixed) text += " order_fixed";
  if (!call.name.empty()) text += fmt::format(" name '{}'", call.name);
  return text;
}

bool has_collective(std::span<const Op> ops) noexcept {
  return std::ranges::any_of(ops, [](const Op& op) { return !is_point_to_point(op.kind); });
}

std::string_view operation_of(std::span<const Op> ops) noexcept {
  for (const auto& op : ops)  // Ranks have the same collectives, but not the same messages.
    if (!is_point_to_point(op.kind)) return name_of(op.kind);
  return ops.empty() ? "coalesced call" : name_of(ops[0].kind);
}

namespace {

std::uint64_t seq_of(std::span<const Op> ops, const Call& call) noexcept {
  return ops.size() == 1 && is_point_to_point(ops[0].kind) ? ops[0].seq : call.seq;
}

}  // namespace

Error call_error(Errc code, const GroupNames& names, std::span<const Op> ops, const Call& call,
                 int rank, const std::string& message) {
  return {code,
          message,
          {.group = names.group(),
           .operation = std::string(operation_of(ops)),
           .seq = static_cast<std::int64_t>(seq_of(ops, call)),
           .rank = names(rank)}};
}

Error with_location(const Error& error, const GroupNames& names, std::span<const Op> ops,
                    const Call& call, int rank) noexcept try {
  const auto& where = error.where();
  if (!where.operation.empty()) return error;
  auto located = call_error(error.code(), names, ops, call, rank, error.message()).where();
  // Ranks of another group, whose connections this one shares, have other numbers.
  const bool is_other = !where.group.empty() && where.group != located.group;
  if (is_other || where.rank >= 0 || where.earlier) located.rank = is_other ? -1 : where.rank;
  if (!is_other) located.missing = where.missing;
  located.earlier = where.earlier;
  return {error.code(), error.message(), located};
} catch (...) {
  return error;
}

std::string refusal_text(std::span<const Op> ops, const Call& call, const Error& why) {
  return fmt::format("{} #{}: {}", operation_of(ops), seq_of(ops, call), why.message());
}

std::string sides_text(const GroupNames& names, int sender, std::string_view send, int receiver,
                       std::string_view recv) {
  return fmt::format("rank {}: {}; rank {}: {}; both sides need the same dtype, count and name",
                     names(sender), send, names(receiver), recv);
}

namespace {

/// Cuts off text that does not fit.
void set_text(Record& record, std::string_view text) {
  text.copy(record.text.data(), record.text.size() - 1);
}

Record make(const Call& call, bool refused, std::string_view text) {
  Record record;
  record.refused = refused ? 1 : 0;
  record.seq = call.seq;
  record.fingerprint = call.fingerprint;
  set_text(record, text);
  return record;
}

}  // namespace

Record Record::of(std::span<const Op> ops, const Call& call) {
  return make(call, false, describe(ops, call));
}

Record Record::refusal(std::span<const Op> ops, const Call& call, const Error& why) {
  return make(call, true, refusal_text(ops, call, why));
}

std::string_view Record::view() const noexcept {
  return {text.data(), ::strnlen(text.data(), text.size())};
}

void write(Writer& out, const Record& record) {
  out.u32(record.format).u32(record.refused).u64(record.seq).u64(record.fingerprint);
  out.text(record.view());
}

Record read_record(Reader& in) {
  Record record;
  record.format = in.u32();
  if (record.format != Record::version)
    failf(Errc::mismatch,
          "a peer's record of its call has version {}, this rank's has {}; run the same version of "
          "tutti on every rank",
          record.format, Record::version);
  record.refused = in.u32();
  record.seq = in.u64();
  record.fingerprint = in.u64();
  set_text(record, in.text());
  return record;
}

std::string list_ranks(std::span<const int> ranks, const GroupNames& names) {
  std::string text;
  for (const int rank : ranks) text += fmt::format("{}{}", text.empty() ? "" : " ", names(rank));
  return text;
}

Error rows_error(const GroupNames& names, std::span<const Op> ops, const Call& call, int from,
                 int to, std::int64_t sent, std::int64_t expected) {
  return call_error(Errc::mismatch, names, ops, call, -1,
                    rows_text(names(from), names(to), sent, expected));
}

Error refused_error(const GroupNames& names, std::span<const Op> ops, const Call& call, int rank,
                    std::string_view why) {
  return call_error(Errc::mismatch, names, ops, call, rank,
                    fmt::format("rank {} refused {}", names(rank), why));
}

std::optional<Error> compare(const GroupNames& names, std::span<const Op> ops, const Call& call,
                             std::span<const Record> records) {
  for (std::size_t r = 0; r < records.size(); ++r)
    if (records[r].refused != 0)
      return refused_error(names, ops, call, static_cast<int>(r), records[r].view());

  struct Side {
    const Record* record;
    std::vector<int> ranks;
  };
  std::vector<Side> sides;
  for (std::size_t r = 0; r < records.size(); ++r) {
    const auto same = std::ranges::find_if(sides, [&](const Side& side) {
      return side.record->fingerprint == records[r].fingerprint &&
             side.record->seq == records[r].seq && side.record->format == records[r].format;
    });
    if (same == sides.end())
      sides.push_back({&records[r], {static_cast<int>(r)}});
    else
      same->ranks.push_back(static_cast<int>(r));
  }
  if (sides.size() <= 1) return std::nullopt;
  std::string text = "ranks made different calls: ";
  for (const auto& side : sides)
    text += fmt::format("{} {}: {} #{}; ", side.ranks.size() == 1 ? "rank" : "ranks",
                        list_ranks(side.ranks, names), side.record->view(), side.record->seq);
  text += "every rank has to make the same calls in the same order";
  // Names the first rank of the smallest set of equal records as the likely origin; no rank if all
  // sets have the same size.
  const auto odd =
      std::ranges::min_element(sides, {}, [](const Side& side) { return side.ranks.size(); });
  const bool tie = std::ranges::all_of(
      sides, [&](const Side& side) { return side.ranks.size() == sides[0].ranks.size(); });
  return call_error(Errc::mismatch, names, ops, call, tie ? -1 : odd->ranks.front(), text);
}

}  // namespace tutti::internal
