#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/backend/backend.hpp>

namespace tutti::internal {

/// How errors name a group and its ranks: a part of another group (WholeGroup) as that group does.
class GroupNames {
 public:
  GroupNames() = default;
  template <std::convertible_to<std::string_view> Text>
  GroupNames(const Text& group)  // NOLINT(google-explicit-constructor): most groups are no parts.
      : group_(std::string_view(group)) {}
  /// `whole`: null unless the group is a part.
  GroupNames(std::string group, std::shared_ptr<const WholeGroup> whole)
      : group_(whole == nullptr ? std::move(group) : whole->name), whole_(std::move(whole)) {}

  const std::string& group() const noexcept { return group_; }
  bool is_part() const noexcept { return whole_ != nullptr; }
  /// The first of the numbers that serve the same call of the whole group; `seq` itself if the
  /// group is no part.
  std::uint64_t first_part(std::uint64_t seq) const noexcept {
    return is_part() ? seq >> whole_->part_bits << whole_->part_bits : seq;
  }
  /// The number in errors of a call.
  std::uint64_t shown(std::uint64_t seq) const noexcept {
    return is_part() ? seq >> whole_->part_bits : seq;
  }
  /// The first of the numbers with this number in errors.
  std::uint64_t first_of_shown(std::uint64_t shown) const noexcept {
    return is_part() ? shown << whole_->part_bits : shown;
  }
  /// Null unless the group is a part.
  const WholeGroup* whole() const noexcept { return whole_.get(); }
  /// The number in errors of a rank of this group. Other numbers, such as any_peer: themselves.
  int operator()(int rank) const noexcept {
    const bool known = whole_ != nullptr && rank >= 0 && rank < std::ssize(whole_->ranks);
    return known ? whole_->ranks[static_cast<std::size_t>(rank)] : rank;
  }

 private:
  std::string group_;
  std::shared_ptr<const WholeGroup> whole_;
};

}  // namespace tutti::internal
