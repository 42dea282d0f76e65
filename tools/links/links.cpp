#include "links/links.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <thread>

#include <fmt/format.h>

#include <tutti/work.hpp>

#include "common/exit_code.hpp"
#include "common/message.hpp"
#include "common/statistics.hpp"

namespace tutti::tool {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Times, medians, least)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Link, from, to, latency_us, message_us)

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::span<std::uint8_t>;

constexpr std::size_t fewest_trips = 10;
constexpr std::size_t most_trips = 1000;
constexpr int most_repeats = 4;
constexpr std::chrono::milliseconds first_pause(10);
constexpr int pause_growth = 4;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// One rank's part. The first byte of a message says whether another one follows, so that the rank
/// that has the clock decides on the number.
class LinkBench {
 public:
  LinkBench(ProcessGroup& group, std::chrono::nanoseconds each)
      : group_(group), each_(each), in_(bandwidth_bytes), out_(bandwidth_window * bandwidth_bytes) {
    for (std::size_t i = 1; i < in_.size(); ++i) in_[i] = content(group.rank(), i);
  }

  /// On both ranks, each with the link from it: adds the times of the messages that it begins. The
  /// lower rank has those of the latency.
  void measure(Link& link) {
    if (link.from < link.to) {
      ping(link.to, link.latency_us);
      send_windows(link.to, link.message_us);
      receive_windows(link.to);
    } else {
      answer(link.to);
      receive_windows(link.to);
      send_windows(link.to, link.message_us);
    }
  }

 private:
  static std::uint8_t content(int rank, std::size_t at) {
    return static_cast<std::uint8_t>(31 * static_cast<std::size_t>(rank) + 13 * at);
  }

  /// Adds the samples of a pass over `call`, at least `fewest` and for the time `each_`, each
  /// divided by `messages`. The first call warms up.
  template <typename Call>
  void time(Times& times, std::size_t fewest, int messages, const Call& call) {
    std::vector<double> us;
    const auto start = Clock::now();
    for (bool more = true; more;) {
      const auto before = Clock::now();
      more = us.size() < fewest || (us.size() < most_trips && before - start < each_);
      in_.front() = more ? 1 : 0;
      call();
      us.push_back(us_since(before) / messages);
    }
    const auto samples = std::span(us).subspan(1);
    const double least = std::ranges::min(samples);
    times.least = times.medians.empty() ? least : std::min(times.least, least);
    times.medians.push_back(median(samples));
  }

  Bytes ping_in() { return Bytes(in_).first(latency_bytes); }
  Bytes ping_out() { return Bytes(out_).first(latency_bytes); }

  void ping(int peer, Times& times) {
    time(times, fewest_trips, 2, [&] {
      group_.send(ping_in(), peer);
      group_.recv(ping_out(), peer);
    });
    check(peer, ping_out());
  }
  void answer(int peer) {
    do {
      group_.recv(ping_out(), peer);
      group_.send(ping_in(), peer);
    } while (out_.front() != 0);
    check(peer, ping_out());
  }

  void send_windows(int peer, Times& times) {
    time(times, 1, bandwidth_window, [&] {
      std::vector<Work> works;
      for (int i = 0; i < bandwidth_window; ++i)
        works.push_back(group_.send_async(Bytes(in_), peer));
      for (Work& work : works) work.wait();
      group_.recv(ping_out(), peer);
    });
  }
  void receive_windows(int peer) {
    do {
      std::vector<Work> works;
      for (int i = 0; i < bandwidth_window; ++i)
        works.push_back(group_.recv_async(message(i), peer));
      for (Work& work : works) work.wait();
      group_.send(ping_in(), peer);
    } while (out_.front() != 0);
    for (int i = 0; i < bandwidth_window; ++i) check(peer, message(i));
  }
  Bytes message(int i) {
    return Bytes(out_).subspan(static_cast<std::size_t>(i) * bandwidth_bytes, bandwidth_bytes);
  }

  void check(int peer, Bytes received) const {
    for (std::size_t i = 1; i < received.size(); ++i)
      if (received[i] != content(peer, i))
        throw Failure(
            Exit::wrong_data,
            fmt::format("rank {}: byte {} of {} from rank {} is {:#04x}, expected {:#04x}",
                        group_.rank(), i, received.size(), peer, received[i], content(peer, i)));
  }

  ProcessGroup& group_;
  std::chrono::nanoseconds each_;
  std::vector<std::uint8_t> in_;
  std::vector<std::uint8_t> out_;
};

/// All links of the group, on one rank.
class AllLinks {
 public:
  AllLinks(ProcessGroup& group, Control& control, const LinkTiming& timing)
      : group_(group), control_(control), bench_(group, timing.each) {
    for (int from = 0; from < group.size(); ++from)
      for (int to = 0; to < group.size(); ++to)
        if (from != to) links_.push_back({from, to, false, {}, {}});
    wanted_.assign(links_.size(), 1);
  }

  /// One pass over the wanted links, one at a time: pairs that share cores or a switch disturb each
  /// other.
  void measure() {
    for (std::size_t i = 0; i < links_.size(); ++i) {
      const Link& link = links_[i];
      if (link.from > link.to || wanted_[i] == 0) continue;
      group_.barrier();
      if (group_.rank() == link.from) bench_.measure(links_[i]);
      if (group_.rank() == link.to) bench_.measure(back(link));
    }
  }

  /// Brings the times of all ranks to rank 0.
  void collect() {
    std::vector<Link> own;
    for (const Link& link : links_)
      if (link.from == group_.rank()) own.push_back(link);
    auto next = links_.begin();
    for (const std::string& text : control_.collect(to_message(own)))
      for (Link& sent : from_message<std::vector<Link>>(text)) *next++ = std::move(sent);
    for (const Link& link : links_)
      if (link.from < link.to) back(link).latency_us = link.latency_us;
  }

  std::vector<Slow> slow(const World& world) {
    const auto host = [&](int rank) { return world.ranks[static_cast<std::size_t>(rank)].host; };
    for (Link& link : links_) link.between_hosts = host(link.from) != host(link.to);
    std::vector<Slow> found =
        slow_by(latency_bytes,
                [](const Link& link, double (*of)(const Times&)) { return of(link.latency_us); });
    const std::vector<Slow> messages =
        slow_by(bandwidth_bytes, [this](const Link& link, double (*of)(const Times&)) {
          return std::max(of(link.message_us), of(back(link).message_us));
        });
    found.insert(found.end(), messages.begin(), messages.end());
    return found;
  }

  /// Selects the links of what rank 0 found for the next pass. Returns false if there are none.
  bool want(const std::vector<Slow>& slow) {
    for (std::size_t i = 0; i < links_.size(); ++i)
      wanted_[i] = std::ranges::any_of(
          slow, [&](const Slow& each) { return each.involves(links_[i].from, links_[i].to); });
    group_.broadcast(std::span(wanted_), 0);
    return std::ranges::count(wanted_, 1) != 0;
  }

  std::vector<Link> take() { return std::move(links_); }

 private:
  /// Ranks and links that are slow by the median pass, the fastest pass and the fastest sample.
  /// Other load slows whole passes; on a host some passes are fast by chance, when both ranks have
  /// a core.
  template <typename Time>
  std::vector<Slow> slow_by(std::int64_t bytes, const Time& time) {
    const auto by = [&](double (*of)(const Times&)) {
      std::vector<LinkTime> times;
      for (const Link& link : links_)
        if (link.from < link.to)
          times.push_back({link.from, link.to, link.between_hosts, time(link, of)});
      return find_slow(times, bytes);
    };
    std::vector<Slow> found = by([](const Times& times) { return times.p50(); });
    for (const auto& too : {by([](const Times& times) { return std::ranges::min(times.medians); }),
                            by([](const Times& times) { return times.least; })})
      std::erase_if(found, [&](const Slow& slow) {
        return std::ranges::none_of(too, [&](const Slow& other) {
          return other.ranks == slow.ranks && other.between_hosts == slow.between_hosts;
        });
      });
    return found;
  }
  /// The link in the other direction.
  Link& back(const Link& link) {
    const int at = link.to * (group_.size() - 1) + link.from - (link.from > link.to ? 1 : 0);
    return links_[static_cast<std::size_t>(at)];
  }

  ProcessGroup& group_;
  Control& control_;
  LinkBench bench_;
  std::vector<Link> links_{};
  std::vector<std::uint8_t> wanted_{};  // 1 for links to measure.
};

}  // namespace

double Times::p50() const {
  return medians.empty() ? 0 : median(medians);
}

double Link::bandwidth() const {
  return static_cast<double>(bandwidth_bytes) / message_us.p50() * 1e-3;
}

void describe(Fields& fields, const Link& link) {
  fields("from", link.from, "rank", {.at_least = 0});
  fields("to", link.to, "rank", {.at_least = 0});
  fields("between_hosts", link.between_hosts);
  fields("latency_us", link.latency_us, "half of a round trip of 8 bytes");
  fields("message_us", link.message_us, "a message of 262144 bytes, four in flight");
  fields("bandwidth_gbps", link.bandwidth(), "GB/s: 262144 bytes / message_us.p50");
}

void describe(Fields& fields, const Times& times) {
  fields("n", std::ssize(times.medians), "passes", {.at_least = 1});
  fields("p50", times.p50(), "median of the passes' medians");
  fields("min", times.least, "of all samples");
}

Links measure_links(ProcessGroup& group, Control& control, const World& world,
                    const LinkTiming& timing) {
  const auto start = Clock::now();
  AllLinks all(group, control, timing);
  for (int pass = 0; pass < timing.passes; ++pass) all.measure();
  std::vector<Slow> slow;
  // Load on the machine passes, so a repetition comes the later the more there were.
  std::chrono::milliseconds pause = first_pause;
  for (int repeat = 0;; ++repeat) {
    all.collect();
    if (group.rank() == 0) slow = all.slow(world);
    if (repeat < most_repeats && Clock::now() - start >= timing.budget)
      slow.clear();  // Unconfirmed.
    if (repeat == most_repeats || !all.want(slow)) break;
    std::this_thread::sleep_for(pause);
    pause *= pause_growth;
    all.measure();
  }
  return {all.take(), std::move(slow)};
}

}  // namespace tutti::tool
