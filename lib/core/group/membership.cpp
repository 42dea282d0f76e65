#include "group/membership.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <random>

#include <fmt/format.h>

#include "backend/rendezvous.hpp"
#include "group/core.hpp"
#include "store/checks.hpp"
#include "values/bytes.hpp"
#include "values/current_error.hpp"
#include "values/error_record.hpp"
#include "values/fail.hpp"
#include "values/hash.hpp"

namespace tutti::internal {
namespace {

constexpr std::size_t longest_handle = 200;
constexpr std::string_view joined = "joined";

std::string key_of_joined(std::string_view group, std::size_t rank) {
  return fmt::format("{}{}/{}", group, joined, rank);
}

std::string key_of(std::string_view handle) {
  return fmt::format("members/{}", handle);
}

std::optional<std::size_t> place_of(std::string_view handle, std::span<const std::string> members) {
  const auto found = std::ranges::find(members, handle);
  if (found == members.end()) return std::nullopt;
  return static_cast<std::size_t>(found - members.begin());
}

/// "rank 2 is 'a' there and 'b' here", of the first place in which the lists differ.
std::string first_difference(std::span<const std::string> there,
                             std::span<const std::string> here) {
  const auto [a, b] = std::ranges::mismatch(there, here);
  const auto text = [](auto at, auto list) {
    return at == list.end() ? std::string("no member") : fmt::format("'{}'", *at);
  };
  return fmt::format("rank {} is {} there and {} here", a - there.begin(), text(a, there),
                     text(b, here));
}

}  // namespace

GroupOptions MemberList::place(const GroupOptions& options) const {
  const auto refuse = [&](const std::string& why) {
    failf(Errc::invalid_argument, "reconfigure of group '{}': {}", options.name, why);
  };
  if (options.rank != GroupOptions().rank || options.size != GroupOptions().size)
    refuse(
        fmt::format("rank is {} and size is {}; the list of members decides both, do not set "
                    "them",
                    options.rank, options.size));
  if (members.empty()) refuse("the list of members is empty");
  std::map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].empty() || members[i].size() > longest_handle)
      refuse(fmt::format("the handle of rank {} has {} bytes; handles of new_member() have 1 to {}",
                         i, members[i].size(), longest_handle));
    const auto [other, is_new] = places.emplace(members[i], i);
    if (!is_new)
      refuse(
          fmt::format("the ranks {} and {} of the list are both member '{}'; list every member "
                      "once",
                      other->second, i, members[i]));
  }
  const auto mine = places.find(own);
  if (mine == places.end())
    refuse(fmt::format("this process is member '{}', which is not in the list of {} members", own,
                       members.size()));
  auto o = options;
  o.rank = static_cast<int>(mine->second);
  o.size = static_cast<int>(members.size());
  return o;
}

std::string MemberList::prefix() const {
  std::array<Hash, 2> hashes;  // Of 64 bits each.
  hashes[1].add(members.size());
  for (auto& hash : hashes)
    for (const auto& member : members) hash.add(member);
  return fmt::format("lists/{:016x}{:016x}/", hashes[0].value(), hashes[1].value());
}

/// A group of a list that a member wants to make.
struct Membership::Attempt {
  std::string list;
  int number = 0;
  std::vector<std::string> members{};
  std::size_t mine = 0;  // The place of this process.

  std::string group() const { return fmt::format("{}{}/", list, number); }
};

Membership::Membership(const GroupOptions& options, const MemberList& list, int number)
    : store_(make_prefix_store(options.store, options.name + '/')),
      name_(options.name),
      own_(list.own),
      members_(list.members.begin(), list.members.end()),
      list_(list.prefix()),
      number_(number) {
  Writer out;
  out.text(list_).i32(number).u64(members_.size());
  for (const auto& member : members_) out.text(member);
  store_->set(key_of(own_), out.bytes());
}

Membership::~Membership() {
  try {
    // A write would wait for the timeout of a store that does not answer, a read does not.
    if (peek(*store_, key_of(own_))) store_->erase(key_of(own_));
  } catch (...) {  // Without the store no member reads the key.
  }
}

void Membership::await_all(Rendezvous& rendezvous) {
  try {
    // The missing members are not known. If any two wait for each other in different lists,
    // one of them finds the other in its turn, and ends the wait of all.
    constexpr int members_of_look = 2;
    std::size_t next = 0;
    (void)rendezvous.exchange(joined, {}, [&] {
      for (int i = 0; i < members_of_look; ++i) look_at(static_cast<int>(next++ % members_.size()));
    });
  } catch (const Error& error) {
    if (error.code() != Errc::timeout || error.where().missing.empty()) throw;
    std::string handles;
    for (const int rank : error.where().missing)
      handles += fmt::format("{}'{}'", handles.empty() ? "" : ", ",
                             members_.at(static_cast<std::size_t>(rank)));
    throw Error(Errc::timeout, fmt::format("{} (members {})", error.message(), handles),
                error.where());
  }
}

/// The attempt of a member that waits in another list for this one, while this one waits for it: a
/// proof that neither group can be made. The order of the reads counts: a member tells its list
/// before it joins, and takes the list back before the keys of its group are removed.
std::optional<Membership::Attempt> Membership::other_attempt_of(int rank) {
  const auto key = key_of(members_[static_cast<std::size_t>(rank)]);
  const auto told = peek(*store_, key);
  if (!told) return std::nullopt;
  Reader in(*told, Errc::backend, "a member's list in the store");
  Attempt other{std::string(in.text()), in.i32()};
  for (auto count = in.u64(); count > 0; --count) other.members.emplace_back(in.text());
  in.end();
  const auto mine = place_of(own_, other.members);
  if (other.list == list_ || !mine) return std::nullopt;
  other.mine = *mine;
  const auto group = fmt::format("{}{}/", list_, number_);
  if (peek(*store_, key_of_joined(other.group(), *mine)) ||
      peek(*store_, key_of_joined(group, static_cast<std::size_t>(rank))) ||
      peek(*store_, key) != told)
    return std::nullopt;
  return other;
}

void Membership::look_at(int rank) {
  const auto first = other_attempt_of(rank);
  if (!first) return;
  const auto& peer = members_[static_cast<std::size_t>(rank)];
  const auto text = fmt::format(
      "member '{}' waits in a list of {} members, and member '{}' in one of {}: {}; "
      "every member has to pass the same list",
      peer, first->members.size(), own_, members_.size(),
      first_difference(first->members, members_));
  // This member gives up the lists of all that wait for it.
  for (int r = 0; r < std::ssize(members_); ++r) {
    const auto other = other_attempt_of(r);
    if (!other) continue;
    const Error error(Errc::mismatch, text,
                      {.group = name_, .rank = static_cast<int>(other->mine)});
    (void)store_->compare_set(other->group() + std::string(failed), {},
                              to_bytes(encode_error(error)));
  }
  throw Error(Errc::mismatch, text, {.group = name_, .rank = rank});
}

}  // namespace tutti::internal

namespace [[gnu::visibility("default")]] tutti {

std::string ProcessGroup::new_member() {
  return internal::without_bad_alloc([] {
    std::array<char, 65> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
    std::random_device random;
    std::string name(host.data());
    std::ranges::replace_if(
        name, [](unsigned char c) { return std::isgraph(c) == 0; }, '?');
    return fmt::format("{}:{}:{:08x}{:08x}{:08x}{:08x}", name, ::getpid(), random(), random(),
                       random(), random());
  });
}

ProcessGroup ProcessGroup::reconfigure(const GroupOptions& options, std::string_view own,
                                       std::span<const std::string> members) {
  const internal::MemberList list{own, members};
  return internal::Core::create(options, &list);
}

}  // namespace tutti
