#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/store/store.hpp>

namespace tutti::internal {

/// One exchange of values between the ranks of a group through its store. A rank makes three
/// requests, whatever the number of ranks: it writes its value, counts itself, and reads one key
/// with the values of all. The rank that counts itself last makes W more, and writes that key.
/// From one thread.
class ValueExchange {
 public:
  /// `what`: the prefix of the keys. A prefix serves one exchange, except after withdraw().
  ValueExchange(Store& store, std::string what, int rank, int size);

  /// Publishes this rank's value. Returns the values of all ranks if this one is the last; else
  /// wait for all_key(), whose value values() reads.
  std::optional<std::vector<Bytes>> publish(std::span<const std::byte> mine);
  /// Ends the exchange of all ranks, in place of publish(), unless all have published.
  void refuse(std::string_view text);
  /// Takes back this rank's publish(), which another one of the same keys may follow. False if all
  /// ranks have published: the exchange then has its result (read_all()), and this rank stays in
  /// it.
  bool withdraw();

  std::string own_key() const { return key(rank_); }
  /// The key that is there once all ranks have published, or one has refused.
  std::string all_key() const { return key(size_); }
  /// The values of all ranks. `all`: the value of all_key(). @throws Error mismatch, with the rank
  /// that has refused; of the store.
  std::vector<Bytes> values(const Bytes& all) const;
  /// Reads the values of all ranks, which takes W requests. Empty if ranks are missing, or if the
  /// store does not answer.
  std::optional<std::vector<Bytes>> read_all() const;
  /// The ranks that have not published. Takes W requests.
  std::vector<int> missing() const;

 private:
  std::string key(int number) const;
  std::string count_key() const;
  std::optional<std::vector<Bytes>> read_published() const;

  Store& store_;
  std::string what_;
  int rank_;
  int size_;
};

}  // namespace tutti::internal
