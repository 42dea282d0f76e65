#include "framework.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace framework {
namespace {

/// Returns the logarithm of the size of the block for `bytes`: at least one cache line.
std::size_t block_of(std::size_t bytes) {
  return static_cast<std::size_t>(std::bit_width(std::max<std::size_t>(bytes, 64) - 1));
}

}  // namespace

Arena::Arena(std::size_t bytes) : region_(std::make_unique<std::byte[]>(bytes + 64)) {
  void* begin = region_.get();
  auto space = bytes + 64;
  begin_ = unused_ = static_cast<std::byte*>(std::align(64, bytes, begin, space));
  end_ = begin_ + bytes;
}

void* Arena::allocate(std::size_t bytes, tutti::Stream) {
  const auto block = block_of(bytes);
  const std::lock_guard lock(mutex_);
  ++allocations_;
  if (auto* again = returned_[block]) {
    returned_[block] = again->next;
    return again;
  }
  if (block >= 48 || (std::size_t{1} << block) > static_cast<std::size_t>(end_ - unused_))
    tutti::fail(tutti::Errc::resource_exhausted,
                "the arena has no block of " + std::to_string(bytes) + " bytes left");
  auto* fresh = unused_;
  unused_ += std::size_t{1} << block;
  return fresh;
}

void Arena::release(void* data, std::size_t bytes, tutti::Stream) noexcept {
  const auto block = block_of(bytes);
  const std::lock_guard lock(mutex_);
  returned_[block] = new (data) Free{returned_[block]};
}

void Arena::copy(void* to, const void* from, std::size_t bytes, tutti::Stream) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

bool Arena::owns(const void* data) const noexcept {
  const std::less<> before;
  return !before(data, begin_) && before(data, end_);
}

void KeyValueService::set(std::string_view key, std::span<const std::byte> value) {
  const std::lock_guard lock(mutex_);
  values_.insert_or_assign(std::string(key), tutti::Bytes(value.begin(), value.end()));
  changed_.notify_all();
}

std::optional<tutti::Bytes> KeyValueService::try_get(std::string_view key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

tutti::Bytes KeyValueService::get(std::string_view key, tutti::Deadline deadline) {
  std::unique_lock lock(mutex_);
  auto found = values_.end();
  const auto there = [&] { return (found = values_.find(key)) != values_.end(); };
  if (deadline.is_set() && !deadline.is_none()) {
    if (!changed_.wait_until(lock, deadline.time(), there))
      tutti::fail(tutti::Errc::timeout, "'" + std::string(key) + "' was not set in time");
  } else {
    changed_.wait(lock, there);
  }
  return found->second;
}

std::int64_t KeyValueService::add(std::string_view key, std::int64_t delta) {
  const std::lock_guard lock(mutex_);
  auto& value = values_.try_emplace(std::string(key)).first->second;
  const std::string before(reinterpret_cast<const char*>(value.data()), value.size());
  const auto sum = (before.empty() ? 0 : std::stoll(before)) + delta;
  const auto after = std::to_string(sum);
  const auto bytes = std::as_bytes(std::span(after));
  value.assign(bytes.begin(), bytes.end());
  changed_.notify_all();
  return sum;
}

tutti::Bytes KeyValueService::compare_set(std::string_view key, std::span<const std::byte> expected,
                                          std::span<const std::byte> desired) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  const bool equal =
      found == values_.end() ? expected.empty() : std::ranges::equal(found->second, expected);
  if (!equal) return found == values_.end() ? tutti::Bytes{} : found->second;
  changed_.notify_all();
  return values_.insert_or_assign(std::string(key), tutti::Bytes(desired.begin(), desired.end()))
      .first->second;
}

bool KeyValueService::erase(std::string_view key) {
  const std::lock_guard lock(mutex_);
  return values_.erase(std::string(key)) != 0;
}

tutti::Logger Journal::logger() {
  return [this](tutti::LogLevel, std::string_view message) {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(message);
  };
}

std::vector<std::string> Journal::lines() const {
  const std::lock_guard lock(mutex_);
  return lines_;
}

std::optional<tutti::ClusterInfo> Scheduler::detect() const {
  return tutti::ClusterInfo{.launcher = "scheduler", .rank = rank_, .size = size_};
}

}  // namespace framework
