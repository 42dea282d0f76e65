#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/tutti.hpp>

// What a framework has before it embeds tutti, with the few lines that fit it to tutti's
// interfaces.

namespace framework {

/// Its allocator: one region, cut into blocks of powers of two that are used again and again.
class Arena final : public tutti::Memory {
 public:
  explicit Arena(std::size_t bytes);

  tutti::Device device() const noexcept override { return {}; }
  void* allocate(std::size_t bytes, tutti::Stream stream) override;
  void release(void* data, std::size_t bytes, tutti::Stream stream) noexcept override;
  void copy(void* to, const void* from, std::size_t bytes, tutti::Stream stream) override;

  bool owns(const void* data) const noexcept;
  std::int64_t allocations() const noexcept { return allocations_; }

 private:
  struct Free {
    Free* next;
  };
  std::unique_ptr<std::byte[]> region_;
  std::byte* begin_;
  std::byte* end_;
  std::byte* unused_;                 // Everything from here on was never handed out.
  std::array<Free*, 64> returned_{};  // By the logarithm of the size.
  std::mutex mutex_;
  std::atomic<std::int64_t> allocations_{0};
};

/// Its key-value service, through which processes find each other.
class KeyValueService final : public tutti::Store {
 public:
  using Store::set;
  void set(std::string_view key, std::span<const std::byte> value) override;
  std::optional<tutti::Bytes> try_get(std::string_view key) override;
  tutti::Bytes get(std::string_view key, tutti::Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  tutti::Bytes compare_set(std::string_view key, std::span<const std::byte> expected,
                           std::span<const std::byte> desired) override;
  bool erase(std::string_view key) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, tutti::Bytes, std::less<>> values_;
};

/// Its log of one rank.
class Journal {
 public:
  tutti::Logger logger();
  std::vector<std::string> lines() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// Its scheduler, which knows every process's place.
class Scheduler final : public tutti::ClusterEnvironment {
 public:
  Scheduler(int rank, int size) : rank_(rank), size_(size) {}
  std::optional<tutti::ClusterInfo> detect() const override;

 private:
  int rank_;
  int size_;
};

/// What one rank hands to tutti.
struct Services {
  Arena* arena = nullptr;
  std::shared_ptr<KeyValueService> store{};
  tutti::Logger logger{};
  std::shared_ptr<const Scheduler> scheduler{};
  tutti::Stream stream{};  ///< The queue on which this rank computes.
};

}  // namespace framework
