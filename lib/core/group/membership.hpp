#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/group_options.hpp>

namespace tutti::internal {

class Rendezvous;

/// The members of a group to be made, and the handle of this process among them.
struct MemberList {
  std::string_view own;
  std::span<const std::string> members;

  /// The options with the rank and size that the list gives. @throws Error invalid_argument.
  GroupOptions place(const GroupOptions& options) const;
  /// The prefix of the keys of all groups of this list.
  std::string prefix() const;
};

/// A member that makes the group of a list: tells the other members in which list it waits, so that
/// two members that wait for each other in different lists are an error at once. The keys, of a
/// group's name:
///   members/<handle>   while the member makes a group: the list, and the group's number in it
class Membership {
 public:
  /// `number`: of the group among those of the list.
  Membership(const GroupOptions& options, const MemberList& list, int number);
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;
  ~Membership();

  /// Blocks until all members have come. @throws Error timeout, with the handles of the missing
  /// members; mismatch; the error of a member that has given up.
  void await_all(Rendezvous& rendezvous);

 private:
  struct Attempt;
  std::optional<Attempt> other_attempt_of(int rank);
  void look_at(int rank);

  std::shared_ptr<Store> store_;
  std::string name_;
  std::string own_;
  std::vector<std::string> members_;
  std::string list_;  // MemberList::prefix().
  int number_;
};

}  // namespace tutti::internal
