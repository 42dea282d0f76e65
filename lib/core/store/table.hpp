#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <tutti/store/store.hpp>

namespace tutti::internal {

/// The keys and values of a store: the functions of Store without blocking and without locks. Only
/// one thread at a time may use the table and the values that it returns.
class StoreTable {
 public:
  struct Limits {
    std::size_t keys = std::numeric_limits<std::size_t>::max();
    std::size_t bytes = std::numeric_limits<std::size_t>::max();  ///< Keys and values together.
  };
  /// A value may outlive its key; its bytes count against Limits::bytes until it is released.
  /// Null: no such key.
  using Value = std::shared_ptr<const Bytes>;

  StoreTable() : StoreTable(Limits{}) {}
  explicit StoreTable(Limits limits) : limits_(limits) {}

  // These throw as the functions of Store do. At a limit they throw Error resource_exhausted and
  // change nothing.
  void set(std::string_view key, std::span<const std::byte> value);
  Value find(std::string_view key) const;
  std::int64_t add(std::string_view key, std::int64_t delta);
  Value compare_set(std::string_view key, std::span<const std::byte> expected,
                    std::span<const std::byte> desired);
  bool erase(std::string_view key);

  /// Counts bytes that are held outside of the table. At the limit take() throws Error
  /// resource_exhausted, which names `key`.
  void take(std::string_view key, std::size_t bytes);
  void give_back(std::size_t bytes) noexcept { *used_ -= bytes; }
  std::size_t bytes() const noexcept { return *used_; }

 private:
  using Map = std::map<std::string, Value, std::less<>>;
  void require(std::string_view key, std::size_t bytes, std::size_t freed) const;
  void put(Map::iterator position, std::string_view key, std::span<const std::byte> value);

  Limits limits_;
  // The values share it, because an unread reply may outlive the table.
  std::shared_ptr<std::size_t> used_ = std::make_shared<std::size_t>(0);
  Map values_;
};

}  // namespace tutti::internal
