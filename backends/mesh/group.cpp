#include "group.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "backend/record.hpp"
#include "values/group_errors.hpp"
#include "values/hash.hpp"

namespace tutti::backend::mesh {

std::uint64_t Group::call_id(const Call& call) const noexcept {
  return internal::call_id(name, names.first_part(call.seq));
}

std::uint64_t Group::pair_id(const Op& op) const noexcept {
  return internal::pair_id(name, rank, op);
}

std::uint64_t Group::slot(const Call& call, std::size_t index,
                          std::uint64_t before) const noexcept {
  internal::Hash hash;
  hash.add(internal::call_id(name, call.seq));
  hash.add(before);
  hash.add(call.fingerprint);
  hash.add(index);
  return hash.value();
}

std::uint64_t Group::pair_slot(const Op& op) const noexcept {
  internal::Hash hash;
  hash.add(pair_id(op));
  hash.add(op.fingerprint);
  return hash.value();
}

Error Group::failed(const TransportError& transport_error, std::span<const Op> ops,
                    const Call& call) const noexcept {
  const bool pair = ops.size() == 1 && is_point_to_point(ops[0].kind);
  if (transport_error.kind == TransportError::Kind::refused) return refused(ops, call, pair);
  auto failure = [&]() noexcept -> internal::Failure {
    try {
      return failure_of(transport_error, ops, call);
    } catch (...) {  // No memory for the text.
      return {.cause = internal::undescribed(Errc::timeout)};
    }
  }();
  const auto here = failure.cause.where();
  // A lost rank ends the calls of all groups on the mesh, so the cause belongs to no call.
  if (transport_error.kind == TransportError::Kind::lost)
    failure.cause = mesh->lost(transport_error.peer);
  const Error cause = transport_error.kind == TransportError::Kind::failed
                          ? mesh->await_failure(failure)
                          : mesh->fail(failure);
  return internal::ended_by(in_own_ranks(cause), here);
}

Error Group::in_own_ranks(const Error& cause) const noexcept {
  const auto& where = cause.where();
  const auto& whole = mesh->names();
  if (cause.code() != Errc::peer_lost || where.group == names.group() ||
      where.group != whole.group())
    return cause;
  const auto lost =
      std::ranges::find_if(ranks, [&](int mesh_rank) { return whole(mesh_rank) == where.rank; });
  return internal::described(Errc::peer_lost, [&] {
    if (lost == ranks.end() && where.rank >= 0)  // Of no member. Its number may be that of another.
      return Error(Errc::peer_lost, cause.message(), {.group = where.group});
    const int own = lost == ranks.end() ? -1 : names(static_cast<int>(lost - ranks.begin()));
    return Error(Errc::peer_lost,
                 fmt::format("{} (ranks of group '{}')", cause.message(), where.group),
                 {.group = names.group(), .rank = own});
  });
}

Error Group::in_mesh_ranks(const Error& own) const noexcept {
  const auto& where = own.where();
  const auto& whole = mesh->names();
  if (own.code() != Errc::peer_lost || where.group == whole.group()) return own;
  return internal::described(Errc::peer_lost, [&] {
    int lost = -1;
    for (int r = 0; r < size(); ++r)
      if (names(r) == where.rank) lost = whole(mesh_rank(r));
    return Error(Errc::peer_lost, own.message(), {.group = whole.group(), .rank = lost});
  });
}

internal::Failure Group::failure_of(const TransportError& transport_error, std::span<const Op> ops,
                                    const Call& call) const {
  const bool pair = ops.size() == 1 && is_point_to_point(ops[0].kind);
  const int peer = static_cast<int>(std::ranges::find(ranks, transport_error.peer) - ranks.begin());
  using Kind = TransportError::Kind;
  const bool lost = transport_error.kind == Kind::lost;
  const bool late = transport_error.kind != Kind::length && !lost;
  Errc code = lost ? Errc::peer_lost : Errc::timeout;
  std::string text;
  if (lost) {  // Mesh::lost() has the text.
  } else if (!late) {
    code = Errc::mismatch;
    text = fmt::format("rank {} sent {} bytes, and rank {} expects {}", names(peer),
                       transport_error.sent, names(rank), transport_error.expected);
  } else if (pair) {
    text = fmt::format("the deadline passed; rank {} has not made its side of {}", names(peer),
                       internal::describe(ops, call, names));
  } else {
    text = fmt::format("the deadline passed while rank {} waited for rank {}", names(rank),
                       names(peer));
  }
  internal::Failure failure{.cause = internal::call_error(code, names, ops, call, peer, text),
                            .names = names};
  if (!pair) {
    failure.status = {
        fmt::format("{} #{} on group '{}'", internal::operation_of(ops), call.seq, name),
        internal::Record::of(ops, call), name};
    // The status of a part's ranks is collected for the whole group.
    if (late && !names.is_part()) failure.ask = ranks;
  }
  return failure;
}

Error Group::refused(std::span<const Op> ops, const Call& call, bool pair) const noexcept {
  const auto& refusal = *mesh->agreement().refusals().of(pair ? pair_id(ops[0]) : call_id(call));
  const int peer = static_cast<int>(std::ranges::find(ranks, refusal.rank) - ranks.begin());
  const Error error = internal::described(Errc::mismatch, [&] {
    return refusal.is_difference
               ? internal::call_error(Errc::mismatch, names, ops, call, -1, refusal.text)
               : internal::refused_error(names, ops, call, peer, refusal.text);
  });
  // The mesh stays up: a send and its receive share a slot that is a hash of their arguments, so a
  // refused one never matches a later one.
  if (pair || names.is_part()) return error;
  if (abandon(call)) {
    calls->history->take_back(call.seq);
    return error;
  }
  return mesh->fail({.cause = internal::broken_by_refusal(error)});
}

bool Group::abandon(const Call& call) const noexcept {
  try {
    // The ranks of a difference wait, and look for refusals every 0.1 s.
    const auto* found = mesh->agreement().refusals().of(call_id(call));
    const bool quick = found != nullptr && found->is_difference;
    const auto soon = Deadline::after(std::chrono::milliseconds(quick ? 500 : 1500));
    const auto limit = std::min(soon, call.limit(),
                                [](const auto& a, const auto& b) { return a.time() < b.time(); });
    const auto id = call_id(call);
    mesh->agreement().refusals().abandon(id);
    const auto peers = mesh->agreement().refusals().await_abandoned(id, ranks, limit);
    return mesh->end_refused(id, peers, limit);
  } catch (...) {  // On false the caller marks the mesh as failed.
    return false;
  }
}

}  // namespace tutti::backend::mesh
