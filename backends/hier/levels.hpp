#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backend/backend_table.hpp>
#include <tutti/backend/host_backend.hpp>

namespace tutti::backend::hier {

/// The places of the ranks of a group on its hosts. Ranks of a host are in the order of their ranks
/// in the group.
class Topology {
 public:
  /// `hosts`: the number of each rank's host; hosts are numbered by their first rank.
  Topology(std::vector<int> hosts, int rank);

  const std::vector<int>& host_of() const noexcept { return hosts_; }
  int hosts() const noexcept { return static_cast<int>(ranks_.size()); }
  int size() const noexcept { return static_cast<int>(hosts_.size()); }
  int host() const noexcept { return host_of(rank_); }
  int host_of(int rank) const noexcept { return hosts_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& ranks_of(int host) const noexcept {
    return ranks_[static_cast<std::size_t>(host)];
  }
  /// The number of a rank among those of its host.
  int place_of(int rank) const noexcept { return places_[static_cast<std::size_t>(rank)]; }
  int place() const noexcept { return place_of(rank_); }
  /// The number of lanes: the least number of ranks of a host. Lane k connects the ranks with place
  /// k of all hosts.
  int lanes() const noexcept { return lanes_; }
  bool in_lane() const noexcept { return place() < lanes_; }
  std::vector<int> lane() const;  ///< The ranks of this rank's lane, by host.
  int most_on_a_host() const noexcept;

 private:
  std::vector<int> hosts_;
  int rank_;
  std::vector<std::vector<int>> ranks_;  // By host.
  std::vector<int> places_;              // By rank.
  int lanes_ = 0;
};

/// The calls of one of these groups that may serve one call of the hier group.
inline constexpr int part_bits = 20;
inline constexpr std::size_t most_parts = std::size_t{1} << part_bits;

/// The group of `init` as the whole of its parts.
WholeGroup whole_group(const BackendInit& init);
/// `ranks`: of the group `whole`, by rank of a part.
std::shared_ptr<const WholeGroup> whole_of(const WholeGroup& whole, std::vector<int> ranks,
                                           bool between_hosts);

/// One of the groups of which a hier group is made, with the order of its calls. The numbers of the
/// calls that serve call n of the hier group begin at n * 2^20. So ranks whose call n ended in
/// different phases, because a rank refused it, use equal numbers again in call n + 1. They are
/// parts of one call (WholeGroup::part_bits).
class Level {
 public:
  explicit Level(std::unique_ptr<Backend> backend);

  Backend& backend() const noexcept { return *backend_; }

  /// Begins a call of the hier group. The previous one has ended.
  void begin(const Call& call) noexcept;
  /// Runs a collective for that call. @throws Error.
  void run(const Op& op, const Call& call);
  /// Starts one on the group's worker.
  std::shared_ptr<WorkState> start(const Op& op, const Call& call);
  /// Reports that this rank will make no further call for that call. A peer has at most one call
  /// in flight, so it waits for this rank in the next one.
  void give_up(const Call& call, const Error& why) noexcept { refuse(next_, call, why); }
  /// Ends the calls for `call` after give_up(), when none is in flight. False if the level is
  /// broken.
  bool leave(const Call& call, const Error& why) noexcept;
  /// Reports that this rank will make no call at all for `call`. From any thread.
  void refuse(const Call& call, const Error& why) noexcept;
  /// Breaks the level because the hier group has broken. From any thread.
  void fail(const Error& why) noexcept;
  /// CallQueue::on_failure().
  void on_failure(std::function<void(const Error& why)> listener);

 private:
  Call part(const Call& call, std::uint64_t number) const noexcept;
  Call next(const Call& call, bool blocking) noexcept;
  void refuse(std::uint64_t number, const Call& call, const Error& why) noexcept;

  std::unique_ptr<Backend> backend_;
  HostBackend* host_;  // backend_.
  std::uint64_t next_ = 0;
};

/// The groups of one rank.
struct Levels {
  explicit Levels(Topology places) : topology(std::move(places)) {}

  Topology topology;
  std::unique_ptr<Level> inner;  ///< The ranks of this host.
  std::unique_ptr<Level> flat;   ///< All ranks; null with one host.
  /// Two groups of the ranks of this rank's lane, because the calls of a group run one after
  /// another: chunks use them in turn, and the messages of one chunk fill the pauses of the other.
  /// Null with one host, and if this rank is in no lane.
  std::array<std::unique_ptr<Level>, 2> lane;

  /// Reports on all levels that this rank will make no further call for `call`, or none at all.
  void give_up(const Call& call, const Error& why) noexcept {
    for_each([&](Level& level) { level.give_up(call, why); });
  }
  /// Ends the calls for `call` after an error, when none is in flight. False if a level is broken.
  bool leave(const Call& call, const Error& why) noexcept {
    bool all = true;
    for_each([&](Level& level) { all = level.leave(call, why) && all; });
    return all;
  }
  void refuse(const Call& call, const Error& why) noexcept {
    for_each([&](Level& level) { level.refuse(call, why); });
  }

  /// The cause of a level that has broken, preferably one with names_ranks().
  std::optional<Error> failure() const;
  /// True if the cause names ranks: of a lost one, or of two that made different calls.
  static bool names_ranks(const Error& cause) noexcept {
    return cause.code() == Errc::peer_lost || cause.code() == Errc::mismatch;
  }

  template <typename F>
  void for_each(const F& f) const {
    for (const auto* level : {&inner, &flat, &lane[0], &lane[1]})
      if (*level != nullptr) f(**level);
  }
};

/// A part of the backend's arguments: "gloo:eth0".
struct Part {
  const BackendEntry* entry = nullptr;
  std::string args{};
};

/// The name and the keys' prefix of a host's group.
std::string inner_name(const BackendInit& init, const Topology& topology);
std::string inner_prefix(const Topology& topology);

/// Groups that exist already; null: make_levels() makes them.
struct Made {
  std::unique_ptr<Backend> inner{};
  std::unique_ptr<Backend> flat{};  ///< Of all ranks.
};

/// Makes the groups of a rank.
Levels make_levels(const BackendInit& init, const WholeGroup& whole, const Part& inner,
                   const Part& outer, std::vector<int> hosts, Made made);

}  // namespace tutti::backend::hier
