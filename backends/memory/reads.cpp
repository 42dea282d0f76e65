#include "reads.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "values/environment_switch.hpp"

namespace tutti::backend::memory {
namespace {

/// Reads are chosen if they take less than this part of the time through slots.
constexpr double gain = 0.95;

}  // namespace

bool read_process(int process, std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  while (bytes != 0) {
    const iovec local{to, bytes};
    const iovec remote{const_cast<std::byte*>(from), bytes};
    const auto got = ::process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (got <= 0) return false;
    to += got;
    from += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

Ways copies_in_a_row(Operation kind, int ranks, std::size_t cores) noexcept {
  const auto all = static_cast<double>(ranks);
  const auto peers = all - 1;
  Ways one{};    // Of the rank with the most.
  Ways total{};  // Of all ranks.
  switch (kind) {
    case Operation::broadcast:  // The root fills a slot while the others take its last one.
      one = {1, 1};
      total = {all, peers};
      break;
    case Operation::scatter:  // The root fills its slots with all blocks.
      one = {all, 1};
      total = {all + peers, peers};
      break;
    case Operation::gather:
      one = {peers, peers};
      total = {2 * peers, peers};
      break;
    case Operation::all_to_all:
      one = {2 * peers, peers};
      total = {2 * peers * all, peers * all};
      break;
    default:  // all_gather
      one = {all, peers};
      total = {all * all, peers * all};
      break;
  }
  const auto share = 1 / static_cast<double>(cores);
  return {std::max(one.slots, total.slots * share), std::max(one.reads, total.reads * share)};
}

Operation tested_for(Operation kind) noexcept {
  switch (kind) {
    case Operation::broadcast:
    case Operation::scatter:
    case Operation::gather:
      return Operation::broadcast;
    default:
      return Operation::all_gather;
  }
}

bool reads_gain(Operation kind, int ranks, std::size_t cores, const Ways& times) noexcept {
  const auto tested = copies_in_a_row(tested_for(kind), ranks, cores);
  const auto copies = copies_in_a_row(kind, ranks, cores);
  return copies.reads * times.reads / tested.reads <
         gain * copies.slots * times.slots / tested.slots;
}

// --- ReadChoice ---

ReadChoice::ReadChoice() {
  const auto number = internal::environment_number("TUTTI_SHM_READS", -1, 1);
  if (number >= 0) wanted_ = number == 1;
}

std::optional<bool> ReadChoice::reads(Operation kind, std::size_t block) const noexcept {
  if (permission_ == Permission::never || block < tested_reads.front()) return false;
  if (permission_ == Permission::always) return true;
  return decided_[place(kind, block)];
}

void ReadChoice::set(Operation kind, std::size_t block, bool reads) noexcept {
  decided_[place(kind, block)] = reads;
}

std::size_t ReadChoice::tested_bytes(std::size_t block) noexcept {
  return *std::prev(std::upper_bound(tested_reads.begin() + 1, tested_reads.end(), block));
}

std::size_t ReadChoice::place(Operation kind, std::size_t block) noexcept {
  // An all_gather_bounded is an all_gather.
  const auto* const of = std::find(kinds.begin(), kinds.end(), kind);
  const auto row =
      of == kinds.end() ? std::find(kinds.begin(), kinds.end(), Operation::all_gather) : of;
  const auto* const size = std::find(tested_reads.begin(), tested_reads.end(), tested_bytes(block));
  return static_cast<std::size_t>(row - kinds.begin()) * tested_reads.size() +
         static_cast<std::size_t>(size - tested_reads.begin());
}

std::string describe_reads(const ReadChoice& choice) {
  auto text = fmt::format("{:<16}", "blocks of KiB");
  for (const auto bytes : tested_reads) text += fmt::format(">= {:<8}", bytes >> 10);
  for (const auto kind : ReadChoice::kinds) {
    text += fmt::format("\n{:<16}", name_of(kind));
    for (const auto bytes : tested_reads) {
      const auto reads = choice.reads(kind, bytes);
      text += fmt::format("{:<11}", !reads ? "unknown" : *reads ? "reads" : "slots");
    }
  }
  return text + "\n";
}

}  // namespace tutti::backend::memory
