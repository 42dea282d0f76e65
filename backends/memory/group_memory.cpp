#include "group_memory.hpp"

#include <algorithm>
#include <string>

#include "values/described.hpp"
#include "values/error_record.hpp"

namespace tutti::backend::memory {
namespace {

/// The record of the error, with a shorter text if it would not fit.
std::string record_of(const Error& why) {
  constexpr std::size_t capacity = sizeof SharedCause::record;
  auto record = internal::encode_error(why);
  if (record.size() <= capacity) return record;
  auto where = why.where();
  // Now 3/4 of the capacity at the most.
  if (where.group.size() > capacity / 8) where.group.clear();
  if (where.operation.size() > capacity / 8) where.operation.clear();
  if (where.missing.size() > capacity / 8) where.missing.clear();
  const auto rest = internal::encode_error({why.code(), "", where}).size();
  return internal::encode_error({why.code(), why.message().substr(0, capacity - rest), where});
}

}  // namespace

Error another_rank_broke_it() noexcept {
  return internal::described(Errc::aborted,
                             [] { return Error(Errc::aborted, "another rank broke the group"); });
}

void GroupMemory::allocate() {
  // The system has the pages of slots when they are first used.
  constexpr std::align_val_t page{4096};
  data = {static_cast<std::byte*>(::operator new(layout_.bytes_of_calls(), page)),
          [](std::byte* all) { ::operator delete(all, page); }};
  construct();
}

void GroupMemory::construct() const noexcept {
  new (at(0)) SharedGroup{};
  for (std::size_t r = 0; r < static_cast<std::size_t>(size_); ++r)
    new (at(layout_.rank(r))) SharedRank{};
}

bool GroupMemory::break_group(int rank, const Error& why) const noexcept {
  auto& mine = of(rank).cause;
  try {
    const auto record = record_of(why);
    std::ranges::copy(record, mine.record.begin());
    mine.bytes.store(record.size(), std::memory_order_relaxed);
  } catch (...) {  // No memory: the peers get no text.
  }
  // A cause is complete before its rank is named, so a process that dies in between leaves no half
  // of one. Sequentially consistent: release publishes the record, acquire is for a later cause(),
  // and the loads by which a peer decides to sleep are ordered against it (Member::notify()).
  std::uint32_t first = 0;
  return group().broken.compare_exchange_strong(first, static_cast<std::uint32_t>(rank) + 1,
                                                std::memory_order_seq_cst);
}

std::optional<Error> GroupMemory::cause() const noexcept {
  // Acquire: the record is complete.
  const auto broken = group().broken.load(std::memory_order_acquire);
  if (broken == 0) return std::nullopt;
  try {
    if (broken <= static_cast<std::uint32_t>(size_)) {
      const auto& from = of(static_cast<int>(broken - 1)).cause;
      const std::string record(
          from.record.data(),
          std::min<std::size_t>(from.bytes.load(std::memory_order_relaxed), from.record.size()));
      return internal::decode_error(record);
    }
  } catch (...) {  // No memory, or not a record.
  }
  return another_rank_broke_it();
}

}  // namespace tutti::backend::memory
