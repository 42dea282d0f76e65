#include "inspect/diagnosis.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "common/text.hpp"

namespace tutti::tool {
namespace {

using State = TraceEntry::State;
using WallTime = std::chrono::system_clock::time_point;
using Traces = std::span<const RankTrace>;  // Of one group, by rank.

/// A trace keeps so many collectives and so many messages.
constexpr std::size_t ring_length = 64;
/// Clocks of hosts differ by less.
constexpr auto clock_error = std::chrono::seconds(1);
/// Findings of messages beyond this number are counted only.
constexpr std::size_t most_messages = 8;

WallTime time_entered(const TraceFile& file, const TraceEntry& e) {
  return WallTime(std::chrono::duration_cast<WallTime::duration>(e.started.time_since_epoch() +
                                                                 file.wall_offset));
}

/// The call without its state: "all_reduce #7 sum f32 16 B".
std::string call_text(const TraceEntry& e) {
  std::string text = to_string(e);
  text.erase(text.rfind(' '));
  constexpr std::string_view async = " async";
  if (text.ends_with(async)) text.erase(text.size() - async.size());
  return text;
}

/// "rank 1", "ranks 0,2-3".
std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", format_ranges(ranks));
}

/// Ranks by what they did, in the order of their first rank.
class Sides {
 public:
  void add(const std::string& key, int rank, std::string text) {
    for (auto& side : sides_)
      if (side.key == key) return side.ranks.push_back(rank);
    sides_.push_back({key, {rank}, std::move(text)});
  }
  std::size_t count() const { return sides_.size(); }
  /// "ranks 0,2: all_reduce #7 sum f32 16 B; rank 1: ...".
  std::string text() const {
    std::string all;
    for (const auto& side : sides_)
      all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", ranks_text(side.ranks), side.text);
    return all;
  }

 private:
  struct Side {
    std::string key;
    std::vector<int> ranks;
    std::string text;
  };
  std::vector<Side> sides_;
};

/// The properties that the ranks of a collective have in common, as far as the trace has them.
std::string common(const TraceEntry& e) {
  using enum Operation;
  std::string key = fmt::format("{} '{}'", name_of(e.operation), e.name);
  if (e.operation == barrier) return key;
  const auto o = e.operation;
  const bool equal_bytes =
      o == all_reduce || o == broadcast || o == reduce || o == scan || o == exclusive_scan;
  const bool reduces = (equal_bytes && o != broadcast) || o == reduce_scatter;
  key += fmt::format(" {} root {}", name_of(e.dtype), e.peer);
  if (reduces) key += fmt::format(" {}", name_of(e.reduce));
  if (equal_bytes) key += fmt::format(" {} B", e.bytes);
  return key;
}

/// The collectives that ranks have entered: the entries of each, by number.
using CallsByNumber = std::map<std::uint64_t, std::vector<std::pair<int, const TraceEntry*>>>;

CallsByNumber calls_by_number(Traces traces) {
  CallsByNumber calls;
  for (const auto& trace : traces)
    for (const auto& e : trace.file.collectives) calls[e.seq].emplace_back(trace.file.rank, &e);
  return calls;
}

void find_divergence(const CallsByNumber& calls, std::vector<Finding>& findings) {
  for (const auto& [seq, entries] : calls) {
    Sides sides;
    for (const auto& [rank, e] : entries) sides.add(common(*e), rank, call_text(*e));
    if (sides.count() < 2) continue;
    findings.push_back({"diverged", fmt::format("at collective #{}: {}", seq, sides.text())});
    return;
  }
}

bool is_unfinished(State state) {
  return state == State::running || state == State::failed;
}

void find_lag(Traces traces, const CallsByNumber& calls, std::vector<Finding>& findings) {
  std::map<int, std::uint64_t> next;  // The first number that a rank has not entered.
  for (const auto& trace : traces) {
    auto& n = next[trace.file.rank];
    for (const auto& e : trace.file.collectives) n = std::max(n, e.seq + 1);
  }
  for (const auto& [seq, entries] : calls) {
    std::vector<int> inside;
    const TraceEntry* call = nullptr;
    bool waits = false;
    for (const auto& [rank, e] : entries)
      if (is_unfinished(e->state)) {
        inside.push_back(rank);
        waits = waits || e->state == State::running;
        if (call == nullptr) call = e;
      }
    std::vector<int> behind;
    for (const auto& [rank, n] : next)
      if (n <= seq) behind.push_back(rank);
    if (inside.empty() || behind.empty()) continue;
    findings.push_back({"lags", fmt::format("{} {} not entered {}, in which {} {}",
                                            ranks_text(behind), behind.size() == 1 ? "has" : "have",
                                            call_text(*call), ranks_text(inside),
                                            !waits               ? "failed"
                                            : inside.size() == 1 ? "waits"
                                                                 : "wait")});
    return;
  }
}

void find_failed(Traces traces, std::vector<Finding>& findings) {
  Sides sides;
  for (const auto& trace : traces)
    for (const auto* ring : {&trace.file.collectives, &trace.file.messages}) {
      const auto e = std::ranges::find_if(*ring, [](const TraceEntry& entry) {
        return entry.state == State::failed || entry.state == State::refused;
      });
      if (e == ring->end()) continue;
      const auto text =
          fmt::format("{} {}", call_text(*e), e->state == State::failed ? "failed" : "was refused");
      sides.add(text, trace.file.rank, text);
    }
  if (sides.count() > 0) findings.push_back({"failed", sides.text()});
}

/// False if the trace of the peer shows the other side of the message, or if it may have shown it:
/// entries do not have the tag, and those of several operations have only one.
bool is_alone(const TraceFile& file, const TraceEntry& e, const TraceFile& peer) {
  const auto has_more = [](const TraceEntry& other) { return other.ops > 1; };
  if (std::ranges::any_of(peer.collectives, has_more)) return false;
  for (const auto& other : peer.messages) {
    if (other.ops > 1) return false;
    const bool of_pair = other.peer == file.rank || other.peer == any_peer;
    if (other.operation != e.operation && of_pair && (other.seq == e.seq || other.peer == any_peer))
      return false;
  }
  return peer.messages.size() < ring_length ||
         time_entered(peer, peer.messages.front()) + clock_error < time_entered(file, e);
}

void find_waits(Traces traces, WallTime now, std::vector<Finding>& findings) {
  std::size_t count = 0;
  for (const auto& trace : traces)
    for (const auto& e : trace.file.messages) {
      if (e.state != State::running || e.ops > 1) continue;
      const auto peer = std::ranges::find_if(
          traces, [&](const RankTrace& other) { return other.file.rank == e.peer; });
      if (peer == traces.end() || !is_alone(trace.file, e, peer->file)) continue;
      if (++count > most_messages) continue;
      const std::chrono::duration<double> age = now - time_entered(trace.file, e);
      findings.push_back(
          {"waits", fmt::format("rank {} in {}, entered {:.1f} s ago: rank {} has no such {}",
                                trace.file.rank, call_text(e), age.count(), e.peer,
                                e.operation == Operation::send ? "recv" : "send")});
    }
  if (count > most_messages)
    findings.push_back({"waits", fmt::format("{} more messages", count - most_messages)});
}

RankReport report_of(const RankTrace& trace, WallTime now) {
  const auto& file = trace.file;
  RankReport report{.rank = file.rank, .pid = file.pid, .host = file.host};
  report.state = file.closed ? "closed" : trace.gone ? "gone" : "open";
  for (const auto* ring : {&file.collectives, &file.messages}) {
    for (const auto& e : *ring) {
      if (e.state != State::running || !report.current.empty()) continue;
      report.current = call_text(e);
      report.age_s = std::chrono::duration<double>(now - time_entered(file, e)).count();
    }
    if (!report.finished.empty()) continue;
    for (const auto& e : *ring)
      if (e.state == State::done) report.finished = call_text(e);
  }
  return report;
}

/// The ranks below `size` that have no trace, "3,5-7". There may be billions.
std::string missing_ranks(Traces traces, int size) {
  std::string text;
  int from = 0;
  const auto gap = [&](int to) {
    if (from < to) text += text.empty() ? "" : ",";
    if (from + 1 == to) text += fmt::format("{}", from);
    if (from + 1 < to) text += fmt::format("{}-{}", from, to - 1);
  };
  for (const auto& trace : traces) {
    gap(trace.file.rank);
    from = trace.file.rank + 1;
  }
  gap(size);
  return text;
}

GroupReport report_of(Traces traces, WallTime now) {
  const auto& first = traces.front().file;
  GroupReport report{.name = first.group, .made = first.opened, .size = first.size};
  report.missing = missing_ranks(traces, first.size);
  for (const auto& trace : traces) report.ranks.push_back(report_of(trace, now));
  auto& findings = report.findings;
  if (!report.missing.empty())
    findings.push_back({"missing", fmt::format("no trace file of rank {}", report.missing)});
  const CallsByNumber calls = calls_by_number(traces);
  find_divergence(calls, findings);
  find_lag(traces, calls, findings);
  for (const auto& rank : report.ranks)
    if (rank.state == "gone")
      findings.push_back(
          {"ended", fmt::format("rank {}: process {} ended without closing the group, {}",
                                rank.rank, rank.pid,
                                !rank.current.empty()    ? "in " + rank.current
                                : !rank.finished.empty() ? "after " + rank.finished
                                                         : "before its first call")});
  find_failed(traces, findings);
  find_waits(traces, now, findings);
  return report;
}

}  // namespace

std::vector<GroupReport> diagnose(std::vector<RankTrace> traces, WallTime now) {
  const auto group_of = [](const RankTrace& trace) {
    const auto& f = trace.file;
    return std::tie(f.made, f.group, f.size);
  };
  const auto rank_of = [&](const RankTrace& trace) {
    return std::tuple_cat(group_of(trace), std::tie(trace.file.rank));
  };
  std::ranges::sort(traces, [&](const RankTrace& a, const RankTrace& b) {
    const auto of_a = rank_of(a);
    const auto of_b = rank_of(b);
    return of_a != of_b ? of_a < of_b : a.file.opened > b.file.opened;
  });
  const auto repeated =
      std::unique(traces.begin(), traces.end(),
                  [&](const RankTrace& a, const RankTrace& b) { return rank_of(a) == rank_of(b); });
  traces.erase(repeated, traces.end());
  std::vector<GroupReport> reports;
  for (auto begin = traces.begin(); begin != traces.end();) {
    const auto end = std::find_if(begin, traces.end(), [&](const RankTrace& trace) {
      return group_of(trace) != group_of(*begin);
    });
    reports.push_back(report_of(Traces(begin, end), now));
    begin = end;
  }
  return reports;
}

}  // namespace tutti::tool
