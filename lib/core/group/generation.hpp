#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/error.hpp>
#include <tutti/group_options.hpp>

namespace tutti::internal {

class GroupKeys;

/// Key of how the first rank of a group made it.
inline constexpr std::string_view made_with = "made_with";

/// The number of a group among those of its name, or of its list of members, which separates their
/// keys. Groups that have been made, or for which ranks waited in vain, are counted for all ranks.
/// The keys, beside those of the groups:
///   groups          the number of the next group, for all ranks
///   groups/<rank>   the same for one rank, if it is a later one
///   failed/<rank>   the numbers of groups that count for all ranks and that this rank could not
///                   make: it erases its keys of them when it has made a later one
class Generation {
 public:
  /// The ranks for which a group counts that a rank could not make.
  enum class Failure {
    each,  ///< Each rank that has tried: the group fails on ranks that begin to make it later, too.
    all,   ///< All ranks: those that begin later make the next group.
  };

  /// Sets the prefix of the keys of `o`.
  Generation(GroupOptions& o, Failure failure);
  /// `error`: of this rank; empty: the group has been made.
  void end(std::optional<Errc> error) noexcept;
  int number() const noexcept { return number_; }

 private:
  std::vector<std::int64_t> failed() const;
  void keep_failed();
  void erase_failed();

  std::shared_ptr<Store> store_;
  std::shared_ptr<GroupKeys> keys_;  // Of this group.
  int rank_;
  std::string own_;
  std::string held_;
  int number_ = 0;
  int size_ = 1;
  Failure failure_;
};

}  // namespace tutti::internal
