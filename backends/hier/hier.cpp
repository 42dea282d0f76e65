// Several hosts with several ranks each (docs/hier.md).

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/backend/host_backend.hpp>

#include "backend/agreement.hpp"
#include "backend/call_history.hpp"
#include "backend/host_calls.hpp"
#include "backend/rank_location.hpp"
#include "backend/record.hpp"
#include "backend/rendezvous.hpp"
#include "collectives.hpp"
#include "group.hpp"
#include "levels.hpp"
#include "messages.hpp"
#include "store/checks.hpp"
#include "values/bytes.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"
#include "values/host_identity.hpp"

namespace tutti::backend::hier {
namespace {

using namespace std::chrono_literals;

struct Parts {
  Part inner;
  Part outer;
};

/// The cause of a part that has lost a rank, for all calls of `group`. A part of the group whose
/// connections it shares may have lost a rank that is no member.
Error lost_in(const std::string& group, const Error& why) noexcept {
  return internal::described(why.code(), [&] {
    const auto& where = why.where();
    return Error(why.code(), why.message(),
                 {.group = where.group.empty() ? group : where.group, .rank = where.rank});
  });
}

class HierBackend final : public HostBackend {
 public:
  HierBackend(const BackendInit& init, WholeGroup whole, Parts parts, std::vector<int> hosts,
              Made made = {})
      : HostBackend(init.name, init.rank),
        init_(init),
        whole_(std::move(whole)),
        parts_(std::move(parts)),
        group_(std::make_shared<Group>(init.name, init.store, init.rank, init.size)),
        calls_store_(make_prefix_store(init.store, "hier/calls/")),
        levels_(make_levels(init, whole_, parts_.inner, parts_.outer, std::move(hosts),
                            std::move(made))) {
    group_->on_failure(
        [this](const Error& why) { levels_.for_each([&](Level& level) { level.fail(why); }); },
        [this](const Error& cause) { fail_queued(cause); });
    levels_.for_each([&](Level& level) {
      level.on_failure([weak = std::weak_ptr<Group>(group_), name = init.name](const Error& why) {
        const auto found = weak.lock();
        if (found == nullptr) return;
        found->part_failed(lost_in(name, why));
      });
    });
  }
  ~HierBackend() override {
    group_->leave();
    stop();
  }

  bool supports(Operation operation, DType dtype, ReduceOp::Kind kind) const noexcept override {
    bool all = HostBackend::supports(operation, dtype, kind);
    levels_.for_each(
        [&](const Level& level) { all = all && level.backend().supports(operation, dtype, kind); });
    return all;
  }
  bool reproduces() const noexcept override {
    bool all = true;
    levels_.for_each([&](const Level& level) { all = all && level.backend().reproduces(); });
    return all;
  }
  Memory& memory() noexcept override { return levels_.inner->backend().memory(); }
  Memory& registrable_memory() noexcept override {
    return levels_.inner->backend().registrable_memory();
  }

  std::unique_ptr<Backend> split(const SplitInit& init) override {
    const BackendInit own = init_.part(init);
    std::vector<int> hosts;  // Numbered by their first rank in the sub-group.
    std::vector<int> seen;
    for (const int r : init.ranks) {
      const int host = levels_.topology.host_of(r);
      const auto found = std::ranges::find(seen, host) - seen.begin();
      if (found == std::ssize(seen)) seen.push_back(host);
      hosts.push_back(static_cast<int>(found));
    }
    auto whole = whole_group(own);
    Made made;
    made.inner = split_inner(own, whole, init.ranks, Topology(hosts, init.rank));
    std::vector<int> all(init.ranks.size());
    std::iota(all.begin(), all.end(), 0);
    if (seen.size() > 1)
      made.flat =
          levels_.flat->backend().split({.ranks = init.ranks,
                                         .rank = init.rank,
                                         .name = init.name,
                                         .store = make_prefix_store(init.store, "hier/flat/"),
                                         .whole = whole_of(whole, std::move(all), true)});
    return std::make_unique<HierBackend>(own, std::move(whole), parts_, std::move(hosts),
                                         std::move(made));
  }

  void abort(std::string_view why) noexcept override {
    (void)group_->fail({.cause = internal::described(Errc::aborted, [&] {
                          return Error(Errc::aborted,
                                       fmt::format("rank {} aborted the group: {}", rank(), why),
                                       {.group = group(), .rank = rank()});
                        })});
  }
  std::optional<Error> failure() const override {
    if (auto cause = group_->cause()) return cause;
    const auto failure = levels_.failure();
    return failure ? std::optional(group_->fail({.cause = *failure})) : std::nullopt;
  }
  std::string transport() const override {
    std::string text = levels_.inner->backend().transport();
    if (levels_.flat == nullptr) return text;
    if (!text.empty()) text += " + ";
    return text + fmt::format("{} ({} hosts, {} of their ranks at a time)",
                              levels_.flat->backend().transport(), levels_.topology.hosts(),
                              levels_.topology.lanes());
  }

 protected:
  void run(std::span<const Op> ops, const Call& call) override {
    Call own = call;
    own.deadline = call.limit();
    own.timeout = {};
    refuse_too_many_parts(ops, own);
    levels_.for_each([&](Level& level) { level.begin(own); });
    const internal::CallHistory::Running running(*whole_.history);
    (void)whole_.history->begin(ops, own);
    const auto error = run_parts(ops, own);
    if (!error) return;
    const bool is_usable = levels_.leave(own, *error);
    whole_.history->take_back(own.seq);
    if (is_usable || group_->cause()) throw Error(*error);
    throw Error(internal::ended_by(failure().value_or(*error), error->where()));
  }

  std::shared_ptr<WorkState> post_one(const Op& op, const Call& call, Deadline limit) override {
    const bool near = is_near(op.peer);
    const Op own = within(op, near);
    if (op.source != nullptr) *op.source = op.peer;
    Call its = call;
    its.deadline = limit;
    its.timeout = {};
    its.blocking = false;
    its.in_order = false;
    try {
      auto state = level(near).backend().launch({&own, 1}, its).release();
      if (state == nullptr) return nullptr;
      return calls().make_state<PartMessage>(std::move(state), group_, op);
    } catch (const Error& error) {
      throw Error(group_->error_of_message(error, op));
    }
  }

  void publish(std::span<const Op> ops, const Call& call, const Error& why) noexcept override {
    internal::for_each_part(ops, call, [&](std::span<const Op> part, const Call& its) {
      if (part.size() == 1 && is_point_to_point(part[0].kind)) {
        const bool near = is_near(part[0].peer);
        const Op own = within(part[0], near);
        level(near).backend().refuse({&own, 1}, its, why);
        return;
      }
      try {
        if (group_->size() > 1)
          group_->agreement().refusals().add({internal::call_id(group(), its.seq), rank(),
                                              internal::refusal_text(part, its, why)});
      } catch (...) {  // The peers wait, and cannot be told of the refusal.
        (void)group_->fail({.cause = internal::to_error(std::current_exception())});
      }
      levels_.refuse(its, why);
    });
  }

 private:
  /// The part of this group's host that is in a sub-group. Null if the inner backend does not
  /// split.
  std::unique_ptr<Backend> split_inner(const BackendInit& own, const WholeGroup& whole,
                                       std::span<const int> members, const Topology& topology) {
    const auto& here = topology.ranks_of(topology.host());
    std::vector<int> places;
    for (const int r : here)
      places.push_back(levels_.topology.place_of(members[static_cast<std::size_t>(r)]));
    return levels_.inner->backend().split(
        {.ranks = places,
         .rank = topology.place(),
         .name = inner_name(own, topology),
         .store = make_prefix_store(own.store, inner_prefix(topology)),
         .whole = whole_of(whole, here, false)});
  }

  /// All ranks refuse such a call alike.
  void refuse_too_many_parts(std::span<const Op> ops, const Call& call) {
    const Collectives collectives(levels_, call, scratch_, wide_scratch_);
    std::size_t parts = 0;
    for (const auto& op : ops)
      if (!is_point_to_point(op.kind)) parts += collectives.parts_of(op);
    if (parts >= most_parts)  // One number is for the refusal of give_up() after an error.
      internal::failf(Errc::count_overflow,
                      "the call needs {} steps within a host, and hier has numbers for {}; divide "
                      "the array or the coalesced call",
                      parts, most_parts);
  }

  /// Returns the error with which the call has ended on this rank.
  std::optional<Error> run_parts(std::span<const Op> ops, const Call& call) {
    Collectives collectives(levels_, call, scratch_, wide_scratch_);
    try {
      for (const auto& op : ops)
        if (!is_point_to_point(op.kind)) collectives.run(op);
    } catch (...) {
      // Reports the error before ~Collectives waits: a part that has stopped ends the calls in
      // flight.
      return ended(internal::to_error(std::current_exception()), ops, call);
    }
    return std::nullopt;
  }

  bool is_near(int peer) const noexcept {
    return levels_.topology.host_of(peer) == levels_.topology.host();
  }
  Level& level(bool near) const noexcept { return near ? *levels_.inner : *levels_.flat; }
  /// A send or receive with the peer's rank in its part of the group.
  Op within(Op op, bool near) const noexcept {
    if (near) op.peer = levels_.topology.place_of(op.peer);
    op.source = nullptr;
    return op;
  }

  /// The error of a call that ended with an error of a part.
  Error ended(const Error& error, std::span<const Op> ops, const Call& call) {
    const auto broken = levels_.failure();
    Error own = error;
    if (!internal::breaks_group(own.code()) && !broken) {
      levels_.give_up(call, own);
      return disagreement(own, ops, call);
    }
    // A part that has lost a rank or compared earlier calls knows more than this one.
    if (broken && (!internal::breaks_group(own.code()) ||
                   (own.code() == Errc::aborted && Levels::names_ranks(*broken))))
      own = *broken;
    const int culprit = own.where().rank;
    const std::string message = own.code() == Errc::timeout ? "the deadline passed"
                                : own.code() == Errc::peer_lost && culprit >= 0
                                    ? lost_text(culprit, own.message())
                                    : own.message();
    internal::Failure failure{
        .cause = internal::call_error(own.code(), group(), ops, call, culprit, message)};
    const auto location = failure.cause.where();
    // A lost rank belongs to no call: survivors may wait for it in another one.
    if (own.code() == Errc::peer_lost)
      failure.cause = lost_in(group(), Error(own.code(), message, own.where()));
    failure.status = {
        fmt::format("{} #{} on group '{}'", internal::operation_of(ops), call.seq, group()),
        internal::Record::of(ops, call), group()};
    if (own.code() == Errc::timeout) {
      failure.ask.resize(static_cast<std::size_t>(group_->size()));
      std::iota(failure.ask.begin(), failure.ask.end(), 0);
      failure.patience = 150ms;  // A part may collect status before its call ends.
    }
    const Error cause =
        own.code() == Errc::aborted ? group_->await_failure(failure) : group_->fail(failure);
    return internal::ended_by(cause, location);
  }

  std::string lost_text(int lost, const std::string& why) const {
    try {
      if (group_->agreement().left(lost)) return fmt::format("rank {} has left the group", lost);
    } catch (...) {  // Without an answer of the store: as if it had died.
    }
    return why;
  }

  static std::string key(const Call& call, int rank) {
    return fmt::format("{}/{}", call.seq, rank);
  }

  /// The error of a call that a rank refused, or in which ranks made different calls. All ranks of
  /// the call have such an error or get one, because each gives up the later phases of the call.
  Error disagreement(const Error& error, std::span<const Op> ops, const Call& call) {
    const auto look = [&] {
      (void)group_->agreement().refusals().read_new();
      if (const auto* refusal =
              group_->agreement().refusals().of(internal::call_id(group(), call.seq)))
        throw Error(internal::refused_error(group(), ops, call, refusal->rank, refusal->text));
    };
    auto why =
        internal::call_error(error.code(), group(), ops, call, error.where().rank, error.message());
    std::vector<internal::Record> records;
    std::vector<int> ranks;  // Of the records.
    const auto add = [&](int r, const Bytes& bytes) {
      internal::Reader in(bytes, Errc::mismatch, "a peer's call");
      records.push_back(internal::read_record(in));
      in.end();
      ranks.push_back(r);
    };
    try {
      look();
      internal::Writer own;
      write(own, internal::Record::of(ops, call));
      calls_store_->set(key(call, rank()), own.bytes());
      const auto soon = Deadline::after(700ms);
      const auto limit = call.deadline.time() < soon.time() ? call.deadline : soon;
      for (int r = 0; r < group_->size(); ++r)
        add(r, internal::await_key(*calls_store_, key(call, r), limit, 100ms, look));
      return internal::compare(group(), ops, call, records).value_or(why);
    } catch (const Error& found) {
      if (found.code() == Errc::mismatch) return found;
    } catch (...) {  // Of a store that the program supplies.
    }
    try {  // A rank whose part of the call has ended writes no record; the others may show both
           // sides.
      for (int r = ranks.empty() ? 0 : ranks.back() + 1; r < group_->size(); ++r)
        if (const auto bytes = internal::peek(*calls_store_, key(call, r))) add(r, *bytes);
      const internal::GroupNames names(group(), whole_of(whole_, std::move(ranks), true));
      if (const auto found = internal::compare(names, ops, call, records)) why = *found;
    } catch (...) {  // Without them.
    }
    const Error cause = group_->fail(
        {.cause = Error(why.code(),
                        why.message() + "; the group is broken, because not all other ranks made "
                                        "the call in time",
                        why.where())});
    return internal::ended_by(cause, error.where());
  }

  BackendInit init_;  // For sub-groups.
  WholeGroup whole_;  // Of the parts, without its ranks.
  Parts parts_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<Store> calls_store_;
  Levels levels_;
  internal::Scratch scratch_;
  internal::Scratch wide_scratch_;
};

Part parse_part(const std::string& text, const std::string& args) {
  if (text.empty() || text.starts_with("hier") || text.starts_with("auto"))
    internal::failf(Errc::invalid_argument,
                    "backend 'hier:{}': name a backend within a host and one between hosts, as in "
                    "hier:shm+tcp or hier:shm+tcp:eth0",
                    args);
  const auto choice = choose_backend(text, Device{});
  return {choice.entry, choice.args};
}

Parts parse(const std::string& given) {
  const std::string args = given.empty() ? "shm+tcp" : given;
  const auto plus = args.find('+');
  return {parse_part(args.substr(0, plus), args),
          parse_part(plus == std::string::npos ? "" : args.substr(plus + 1), args)};
}

std::unique_ptr<Backend> make(const BackendInit& init) {
  auto parts = parse(init.args);
  internal::Rendezvous rendezvous(init);
  auto own = init;
  own.locations = internal::locations_of(init, rendezvous);
  std::vector<std::string> hosts;
  for (const auto& location : own.locations) {
    hosts.push_back(location->host);
    if (parts.inner.entry->one_process)
      hosts.back() += fmt::format(" process {}", location->process);
  }
  return std::make_unique<HierBackend>(own, whole_group(own), std::move(parts),
                                       internal::number_hosts(hosts));
}

std::string details() {
  return fmt::format("the host of rank 0 here: {} (TUTTI_HOSTS)\n", internal::host_of(0));
}

}  // namespace

extern const BackendEntry entry;
const BackendEntry entry{
    .name = "hier",
    .summary =
        "host memory of several ranks on each of several hosts; hier:shm+tcp names the "
        "backends within a host and between hosts",
    .serves = [](Device device) noexcept { return device.type == DeviceType::cpu; },
    .unavailable = [] { return std::string(); },
    .make = make,
    .details = details,
};

}  // namespace tutti::backend::hier
