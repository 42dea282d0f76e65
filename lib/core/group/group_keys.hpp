#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <tutti/store/store.hpp>

#include "store/served_store.hpp"

namespace tutti::internal {

/// The store of one rank of a group, which removes the group's keys: it notes the keys that this
/// rank writes, and the last of the ranks whose GroupKeys ends erases those of all. No rank reads
/// them after that. A rank's GroupKeys ends when nothing of the group, nor of a group made from it,
/// uses the store any more. If a rank has died, the last of the other ranks erases its keys too, as
/// far as they are numbered by rank. Called from any thread.
class GroupKeys final : public Store, public ServedStore {
 public:
  /// Puts `prefix` before every key of `base`. If `base` is the GroupKeys of a parent group, keeps
  /// it alive, but leaves its list of keys alone.
  GroupKeys(const std::shared_ptr<Store>& base, const std::string& prefix, int rank, int size);
  /// The keys of the group of the ranks that are left of `whole`, which removes them with its own.
  /// `left`: by the new rank.
  GroupKeys(const std::shared_ptr<GroupKeys>& whole, const std::string& prefix,
            const std::vector<int>& left);
  /// Takes three round trips to the store; on the last rank one more for each rank and each key,
  /// and if a rank was lost, W more for each key of one rank.
  ~GroupKeys() override;
  GroupKeys(const GroupKeys&) = delete;
  GroupKeys& operator=(const GroupKeys&) = delete;

  /// Sets the arguments of the constructor, before the first key is written.
  void place(int rank, int size) noexcept {
    rank_ = rank;
    size_ = size;
  }
  /// Called when the group has been made, or a smaller one of those that are left: writes the list
  /// of this rank's keys, should it die. Without it the keys are kept: ranks that come later find
  /// there why the group could not be made.
  void set_made() noexcept;
  /// Writes the list of this rank's keys for erase_listed(): the group could not be made.
  void set_failed();
  /// Erases the keys that set_failed() of a rank has listed. `base`, `prefix`: of the constructor.
  static void erase_listed(const std::shared_ptr<Store>& base, const std::string& prefix, int rank);

  /// Notes that a rank has died, or no longer uses the keys. All remaining ranks must do so.
  void lose(int rank) noexcept;

  using Store::set;
  void set(std::string_view key, std::span<const std::byte> value) override;
  std::optional<Bytes> try_get(std::string_view key) override { return base_->try_get(key); }
  Bytes get(std::string_view key, Deadline deadline) override { return base_->get(key, deadline); }
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  Bytes compare_set(std::string_view key, std::span<const std::byte> expected,
                    std::span<const std::byte> desired) override;
  bool erase(std::string_view key) override;
  std::string local_address() const override { return base_->local_address(); }
  bool in_process() const override { return base_->in_process(); }
  bool is_served_here() const noexcept override { return internal::is_served_here(*base_); }
  StoreIdentity identity() const override { return identity_of(*base_); }

 private:
  void note(std::string_view key);
  void write_list(bool in_use);
  void leave();

  std::shared_ptr<Store> parent_;
  std::shared_ptr<Store> base_;
  int rank_;
  int size_;
  int process_;
  std::shared_ptr<GroupKeys> whole_{};  // Of a group of those that are left.
  std::vector<int> left_{};
  bool made_ = false;
  std::mutex mutex_;
  std::set<std::string, std::less<>> keys_;  // That this rank has written.
  std::set<int> lost_;
};

}  // namespace tutti::internal
