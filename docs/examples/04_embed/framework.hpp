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

// Parts of a framework, with the few lines that fit them to tutti's interfaces.

namespace framework {

/// The framework's allocator: one region, divided into reusable blocks whose sizes are powers of
/// two.
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
  std::byte* unused_;                 // Memory from here on has never been allocated.
  std::array<Free*, 64> returned_{};  // By the logarithm of the size.
  std::mutex mutex_;
  std::atomic<std::int64_t> allocations_{0};
};

/// The framework's key-value service, for rendezvous.
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

/// The framework's log of one rank.
class Journal {
 public:
  tutti::Logger logger();
  std::vector<std::string> lines() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// The framework's scheduler, which knows the rank of every process.
class Scheduler final : public tutti::ClusterEnvironment {
 public:
  Scheduler(int rank, int size) : rank_(rank), size_(size) {}
  std::optional<tutti::ClusterInfo> detect() const override;

 private:
  int rank_;
  int size_;
};

/// The services that one rank passes to tutti.
struct Services {
  Arena* arena = nullptr;
  std::shared_ptr<KeyValueService> store{};
  tutti::Logger logger{};
  std::shared_ptr<const Scheduler> scheduler{};
  tutti::Stream stream{};  ///< The queue on which this rank computes.
};

}  // namespace framework
