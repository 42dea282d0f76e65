#include "group.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "group/record.hpp"
#include "values/broken.hpp"
#include "values/hash.hpp"

namespace tutti::backend::gloo {

std::uint64_t Group::slot(const Call& call, std::size_t index) const noexcept {
  internal::Hash hash;
  hash.add(name);
  hash.add(call.seq);
  hash.add(call.fingerprint);
  hash.add(index);
  return hash.value();
}

std::uint64_t Group::pair_slot(const Op& op) const noexcept {
  const bool sends = op.kind == Operation::send;
  internal::Hash hash;
  hash.add(name);
  hash.add(~std::uint64_t{0});  // No collective has this number.
  hash.add(static_cast<std::uint64_t>(sends ? rank : op.peer));
  hash.add(static_cast<std::uint64_t>(sends ? op.peer : rank));
  hash.add(static_cast<std::uint64_t>(op.tag));
  hash.add(op.seq);
  hash.add(op.fingerprint);
  return hash.value();
}

Error Group::failed(const Trouble& trouble, std::span<const Op> ops,
                    const Call& call) const noexcept {
  const bool pair = is_point_to_point(ops[0].kind);
  const int peer = static_cast<int>(std::ranges::find(ranks, trouble.peer) - ranks.begin());
  const bool lost = trouble.kind == Trouble::Kind::lost;
  const auto text =
      lost   ? fmt::format("the connection to rank {} ended", peer)
      : pair ? fmt::format("the deadline passed; rank {} has not made its side of {}", peer,
                           internal::describe(ops, call))
             : fmt::format("the deadline passed while this rank waited for rank {}", peer);
  Report report{.cause = internal::call_error(lost ? Errc::peer_lost : Errc::timeout, name, ops,
                                              call, peer, text)};
  if (!pair) {
    report.call = fmt::format("{} #{} on group '{}'", internal::operation_of(ops), call.seq, name);
    if (!lost) report.ranks = ranks;
  }
  if (lost) report.lost = trouble.peer;
  const Error cause =
      trouble.kind == Trouble::Kind::failed ? mesh->await_failure(report) : mesh->fail(report);
  // Calls that failed by themselves say so; the others say that the group broke elsewhere.
  const auto& where = cause.where();
  const auto& mine = report.cause.where();
  if (where.group == mine.group && where.seq == mine.seq && where.operation == mine.operation)
    return cause;
  return cause.code() == Errc::aborted ? cause : internal::broken(cause);
}

std::uint64_t CallWire::slot_of(std::size_t bytes) const noexcept {
  if (!sizes_differ_) return slot_;
  internal::Hash hash;
  hash.add(slot_);
  hash.add(bytes);
  return hash.value();
}

void CallWire::send(int to, const void* data, std::size_t bytes) {
  // Gloo has one kind of buffer; it only reads what it sends.
  auto& message =
      sends_.emplace_back(*group_.mesh, group_.mesh_rank(to), const_cast<void*>(data), bytes);
  message.send(slot_of(bytes));
}

void CallWire::recv(int from, void* data, std::size_t bytes) {
  auto& message = recvs_.emplace_back(*group_.mesh, group_.mesh_rank(from), data, bytes);
  message.recv(slot_of(bytes));
}

void CallWire::wait_recv() {
  recvs_.front().wait(limit_);
  recvs_.pop_front();
}

void CallWire::wait_sends(std::size_t left) {
  while (sends_.size() > left) {
    sends_.front().wait(limit_);
    sends_.pop_front();
  }
}

}  // namespace tutti::backend::gloo
