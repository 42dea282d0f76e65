#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "backend/rendezvous.hpp"
#include "backend/value_exchange.hpp"
#include "group/core.hpp"
#include "group/group_keys.hpp"
#include "values/bytes.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"
#include "values/hash.hpp"

// Sub-groups and registrations: functions of Core in which ranks exchange two numbers each.

namespace tutti::internal {
namespace {

/// Blocks until all ranks have published. @throws Error timeout, which names the missing ranks, and
/// after which this rank may use the same keys again; mismatch, the refusal of a rank.
std::vector<Bytes> await_values(Store& store, ValueExchange& exchange, Deadline limit) {
  try {
    return exchange.values(store.get(exchange.all_key(), limit));
  } catch (const Error& error) {
    if (error.code() != Errc::timeout || !peek(store, exchange.own_key())) throw;
    const auto missing = exchange.missing();
    // The rank that came last may have died before it wrote the values of all. Without withdraw()
    // the values of ranks that have given up would count.
    if (!exchange.withdraw())
      if (auto all = exchange.read_all()) return *std::move(all);
    throw Error(Errc::timeout,
                missing.empty()
                    ? "the deadline passed; all ranks have come, but some had given up before"
                    : fmt::format("the deadline passed; missing: {}", fmt::join(missing, " ")),
                {.rank = missing.empty() ? -1 : missing.front(), .missing = missing});
  }
}

void check_subset(std::span<const int> ranks, int size, const std::string& group) {
  if (ranks.empty()) failf(Errc::invalid_argument, "subset of group '{}' is empty", group);
  std::vector<bool> seen(static_cast<std::size_t>(size));
  for (const int r : ranks) {
    if (r < 0 || r >= size || seen[static_cast<std::size_t>(r)])
      failf(Errc::invalid_argument,
            "subset [{}] of group '{}': {} is {}; list each of the ranks 0 to {} at most once",
            fmt::join(ranks, ", "), group, r,
            r < 0 || r >= size ? "not a rank" : "in the list twice", size - 1);
    seen[static_cast<std::size_t>(r)] = true;
  }
}

void check_block(const TensorView& block, const Device& device, const std::string& group) {
  if (static_cast<int>(block.dtype) >= dtype_count)
    failf(Errc::invalid_argument,
          "register_memory: the dtype of the block is {}; dtypes are 0 to {}",
          static_cast<int>(block.dtype), dtype_count - 1);
  if (block.device != device)
    failf(Errc::invalid_argument,
          "register_memory: the block is on {}, but group '{}' works on {}; allocate it there",
          to_string(block.device), group, to_string(device));
  if (block.data == nullptr || block.bytes() == 0)
    failf(Errc::invalid_argument,
          "register_memory: the block is {} and has {} bytes; pass allocated memory of at least 1 "
          "byte",
          block.data == nullptr ? "null" : "not null", block.bytes());
}

}  // namespace

ValueExchange Core::next_exchange(std::string_view what) const {
  return {*options_.store, fmt::format("{}/{}", what, splits_), bounds_.rank, bounds_.size};
}

std::vector<std::array<std::int64_t, 2>> Core::exchange(std::array<std::int64_t, 2> mine,
                                                        std::string_view what,
                                                        const CallOptions& options) {
  std::vector<std::array<std::int64_t, 2>> all(static_cast<std::size_t>(bounds_.size));
  if (bounds_.device.type == DeviceType::cpu) {
    const ConstTensorView in(mine.data(), DType::i64, {2});
    const TensorView out(all.data(), DType::i64, {2 * std::int64_t{bounds_.size}});
    Op gather{.kind = Operation::all_gather, .in = in, .out = out};
    CallOptions named = options;
    if (named.name.empty()) named.name = what;
    (void)issue(gather, named, Wait::stream);
    return all;
  }
  // Uses the store: a collective on a device would need a synchronisation with the host.
  check_usable(what);
  const auto limit = make_call(options, true).limit();
  if (bounds_.size == 1) return {mine};
  auto numbers = next_exchange(what);
  try {
    auto values = numbers.publish(std::as_bytes(std::span(mine)));
    if (!values) values = await_values(*options_.store, numbers, limit);
    for (std::size_t r = 0; r < all.size(); ++r) {
      Reader in(values->at(r), Errc::backend, "two numbers of a rank");
      std::memcpy(&all[r], in.raw(sizeof all[r]).data(), sizeof all[r]);
    }
  } catch (const Error& error) {
    // A refusal counts on every rank, so the next exchange uses new keys.
    if (error.code() == Errc::mismatch) ++splits_;
    auto where = error.where();
    where.group = options_.name;
    where.operation = what;
    throw Error(error.code(), error.message(), where);
  }
  return all;
}

void Core::refuse_exchange(std::string_view what, const Error& why) {
  check_usable(what);
  if (bounds_.device.type != DeviceType::cpu) {
    next_exchange(what).refuse(fmt::format("refused {}: {}", what, why.message()));
    ++splits_;
    throw Error(why);
  }
  if (collects_here()) throw Error(why);  // No peer waits yet.
  Op gather{.kind = Operation::all_gather};
  const std::span<Op> ops(&gather, 1);
  refuse(ops, number(ops, {.name = what}, true, false), why, gather);
}

Core::Part Core::prepare_part(const std::string& name) const {
  Part part{.options = options_};
  auto& o = part.options;
  o.name = options_.name + '/' + name;
  o.timeout = timeout();
  o.adopt.reset();
  part.keys = std::make_shared<GroupKeys>(options_.store, name + '/', bounds_.rank, bounds_.size);
  o.store = part.keys;
  part.rendezvous = std::make_unique<Rendezvous>(
      BackendInit{.store = o.store, .rank = bounds_.rank, .size = bounds_.size, .name = o.name});
  const auto most = static_cast<std::size_t>(bounds_.size);
  part.ranks.reserve(most);
  part.locations.reserve(most);
  return part;
}

ProcessGroup Core::make_part(Part part, int rank) {
  auto& o = part.options;
  o.rank = rank;
  o.size = static_cast<int>(part.ranks.size());
  part.keys->place(o.rank, o.size);
  part.rendezvous->place(o.rank, o.size, o.timeout);
  try {
    take_locations(part.ranks, part.locations);
    auto backend =
        backend_->split({.ranks = part.ranks, .rank = rank, .name = o.name, .store = o.store});
    if (backend != nullptr) {
      auto core = std::make_shared<Core>(o, std::move(backend), choice_, std::move(part.locations),
                                         make_traces(o, part.rendezvous.get()));
      part.keys->set_made();
      return ProcessGroup(std::move(core));
    }
  } catch (...) {
    const Error error = part.rendezvous->give_up(to_error(std::current_exception()));
    // The other members may have the part already. It shares the connections of this group.
    if (error.code() == Errc::resource_exhausted) break_with(error, false);
    throw Error(error);
  }
  if (choice_.entry == nullptr)
    failf(Errc::unsupported,
          "group '{}': the Backend object passed to create() does not implement split()",
          options_.name);
  try {  // "auto" may choose another backend than the parent's.
    auto group = create_over(o, std::move(part.locations));
    part.keys->set_made();
    return group;
  } catch (const std::bad_alloc&) {  // Before create_over() could tell the others.
    throw Error(part.rendezvous->give_up(out_of_memory()));
  }
}

std::optional<ProcessGroup> Core::split(int color, int key, const CallOptions& options) try {
  std::optional<Part> part;
  check_exchange("split", options, [&] {
    if (color >= 0) part = prepare_part(fmt::format("{}.{}", splits_, color));
  });
  const auto all = exchange({color, key}, "split", options);
  ++splits_;
  if (!part) return std::nullopt;
  auto& ranks = part->ranks;
  for (int r = 0; r < bounds_.size; ++r)
    if (all[static_cast<std::size_t>(r)][0] == color) ranks.push_back(r);
  std::ranges::stable_sort(ranks, {}, [&](int r) { return all[static_cast<std::size_t>(r)][1]; });
  const auto me = std::ranges::find(ranks, bounds_.rank) - ranks.begin();
  return make_part(*std::move(part), static_cast<int>(me));
} catch (const std::bad_alloc&) {
  end_for_lack_of_memory("split");
}

std::optional<ProcessGroup> Core::subset(std::span<const int> ranks,
                                         const CallOptions& options) try {
  Hash hash;
  const auto me = std::ranges::find(ranks, bounds_.rank);
  std::optional<Part> part;
  check_exchange("subset", options, [&] {
    check_subset(ranks, bounds_.size, options_.name);
    if (me == ranks.end()) return;
    part = prepare_part(fmt::format("{}.s", splits_));
    part->ranks.assign(ranks.begin(), ranks.end());
  });
  for (const int r : ranks) hash.add(static_cast<std::uint64_t>(r));
  const auto mine = static_cast<std::int64_t>(hash.value());
  const auto all = exchange({mine, std::ssize(ranks)}, "subset", options);
  ++splits_;
  for (int r = 0; r < bounds_.size; ++r)
    if (all[static_cast<std::size_t>(r)] != all[0])
      throw Error(
          Errc::mismatch,
          fmt::format("ranks 0 and {} passed different lists ({} and {} ranks, this rank: [{}]); "
                      "every rank has to pass the same list",
                      r, all[0][1], all[static_cast<std::size_t>(r)][1], fmt::join(ranks, ", ")),
          {.group = options_.name, .operation = "subset", .rank = r});
  if (!part) return std::nullopt;
  return make_part(*std::move(part), static_cast<int>(me - ranks.begin()));
} catch (const std::bad_alloc&) {
  end_for_lack_of_memory("subset");
}

/// The ranks that have called shrink() for this attempt, whose keys are those of `store`.
std::vector<int> Core::find_left(Store& store, std::span<const int> lost,
                                 std::chrono::nanoseconds patience) const {
  const auto key = [](int rank) { return fmt::format("called/{}", rank); };
  store.set(key(bounds_.rank), "");
  const auto limit = Deadline::after(patience);
  std::vector<int> left;
  for (int r = 0; r < bounds_.size; ++r) {
    try {
      const bool waits = std::ranges::find(lost, r) == lost.end();
      if (waits) (void)store.get(key(r), limit);
      if (waits || store.try_get(key(r))) left.push_back(r);
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
    }
  }
  Writer list;
  list.list(std::vector<std::int64_t>(left.begin(), left.end()));
  const auto first = store.compare_set("left", {}, list.bytes());
  Reader in(first, Errc::backend, "the list of the ranks that are left");
  const auto agreed = in.list();
  in.end();
  return {agreed.begin(), agreed.end()};
}

/// The keys of the group are removed without a rank that has died.
void Core::note_lost_rank() const noexcept {
  try {
    auto* const keys = dynamic_cast<GroupKeys*>(options_.store.get());
    if (keys == nullptr) return;
    if (const auto cause = lost_rank(); cause && cause->where().rank >= 0)
      keys->lose(cause->where().rank);
  } catch (...) {  // The keys stay.
  }
}

ProcessGroup Core::shrink(std::span<const int> lost, std::chrono::nanoseconds patience) {
  constexpr std::string_view what = "shrink";
  if (fork_guard_.forked()) throw_unusable(what);
  std::vector<int> known(lost.begin(), lost.end());
  for (const int r : known)
    if (r < 0 || r >= bounds_.size || r == bounds_.rank)
      failf(Errc::invalid_argument,
            "shrink: rank {} is in the list of lost ranks; list other ranks than this one ({}), of "
            "0 to {}",
            r, bounds_.rank, bounds_.size - 1);
  if (const auto cause = lost_rank()) known.push_back(cause->where().rank);
  const auto attempt = fmt::format("shrink/{}/", shrinks_++);
  auto o = options_;
  o.timeout = timeout();
  o.store = make_prefix_store(options_.store, attempt);
  const auto left = find_left(*o.store, known, patience);
  const auto me = std::ranges::find(left, bounds_.rank);
  if (me == left.end())
    throw Error(Errc::peer_lost,
                fmt::format("rank {} called after the other ranks had agreed on the ranks {}; call "
                            "within their patience",
                            bounds_.rank, fmt::join(left, " ")),
                {.group = options_.name, .operation = std::string(what), .rank = bounds_.rank});
  const auto keys = std::dynamic_pointer_cast<GroupKeys>(options_.store);
  for (int r = 0; keys != nullptr && r < bounds_.size; ++r)
    if (std::ranges::find(left, r) == left.end()) keys->lose(r);
  o.rank = static_cast<int>(me - left.begin());
  o.size = static_cast<int>(left.size());
  o.adopt.reset();
  const auto prefix = attempt + "group/";
  o.store = keys == nullptr ? make_prefix_store(options_.store, prefix)
                            : std::make_shared<GroupKeys>(keys, prefix, left);
  RankLocations locations;
  take_locations(left, locations);
  auto group = create_over(o, std::move(locations));
  if (keys != nullptr) keys->set_made();
  return group;
}

Registration Core::register_memory(const TensorView& block, const CallOptions& options) try {
  constexpr std::string_view what = "register_memory";
  check_usable(what);
  if (collects_here())
    failf(Errc::invalid_argument,
          "register_memory: group '{}' is collecting calls for a Coalesce; call launch() first",
          options_.name);
  auto kind = RegistrationKind::none;
  check_exchange(what, options, [&] {
    check_block(block, bounds_.device, options_.name);
    kind = backend_->registrable(block, options.stream);
  });
  const auto all = exchange(
      {static_cast<std::int64_t>(block.bytes()), static_cast<std::int64_t>(kind)}, what, options);
  ++splits_;  // Numbers exchanges.
  for (int r = 0; r < bounds_.size; ++r) {
    const auto& theirs = all[static_cast<std::size_t>(r)];
    if (theirs[0] != all[0][0])
      throw Error(Errc::mismatch,
                  fmt::format("ranks 0 and {} register {} and {} bytes; every rank has to register "
                              "the same number of bytes",
                              r, all[0][0], theirs[0]),
                  {.group = options_.name, .operation = std::string(what), .rank = r});
    kind = std::min(kind, static_cast<RegistrationKind>(theirs[1]));
  }
  if (kind == RegistrationKind::none) return {};
  try {
    return backend_->register_memory(block, kind, make_call(options, true).limit());
  } catch (const Error& error) {
    if (breaks_group(error.code())) break_with(error, false);
    throw;
  }
} catch (const std::bad_alloc&) {
  end_for_lack_of_memory("register_memory");
}

}  // namespace tutti::internal
