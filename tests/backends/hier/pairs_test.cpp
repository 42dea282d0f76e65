// Ranks of one group that make two different calls: hosts that wait in different parts of a hier
// group, and for comparison the backends that have no parts. In normal mode, where ranks compare
// their calls while they wait.

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/tutti.hpp>

#include "support/array.hpp"
#include "support/ranks.hpp"
#include "support/scoped_variables.hpp"
#include "support/worlds.hpp"

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;

struct NamedCall {
  std::string_view name;
  std::function<void(ProcessGroup& group)> make;
  /// In the errors of all ranks.
  std::string_view text;
};

/// Calls `f(in, out)` with arrays of 4 elements, or 4 for each rank.
template <typename F>
std::function<void(ProcessGroup&)> with_arrays(bool all_in, bool all_out, F f) {
  return [=](ProcessGroup& group) {
    const auto array = [&](bool all) {
      return Buffer(group, DType::f32, {all ? 4 * group.size() : 4});
    };
    const auto in = array(all_in);
    const auto out = array(all_out);
    f(group, in, out);
  };
}

std::vector<NamedCall> calls() {
  using Group = ProcessGroup;
  return {
      {"all_reduce",
       with_arrays(false, false, [](Group& g, auto& in, auto& out) { g.all_reduce(in, out); }),
       "all_reduce"},
      {"broadcast",
       with_arrays(false, false, [](Group& g, auto&, auto& out) { g.broadcast(out, 0); }),
       "broadcast"},
      {"reduce",
       with_arrays(false, false, [](Group& g, auto& in, auto& out) { g.reduce(in, out, 0); }),
       "reduce"},
      {"all_gather",
       with_arrays(false, true, [](Group& g, auto& in, auto& out) { g.all_gather(in, out); }),
       "all_gather"},
      {"reduce_scatter",
       with_arrays(true, false, [](Group& g, auto& in, auto& out) { g.reduce_scatter(in, out); }),
       "reduce_scatter"},
      {"barrier", [](Group& g) { g.barrier(); }, "barrier"},
      {"split", [](Group& g) { (void)g.split(0); }, "all_gather"},
      {"gather",
       with_arrays(false, true, [](Group& g, auto& in, auto& out) { g.gather(in, out, 0); }),
       "gather"},
      {"scatter",
       with_arrays(true, false, [](Group& g, auto& in, auto& out) { g.scatter(in, out, 0); }),
       "scatter"},
      {"scan", with_arrays(false, false, [](Group& g, auto& in, auto& out) { g.scan(in, out); }),
       "scan"},
      {"exclusive_scan",
       with_arrays(false, false, [](Group& g, auto& in, auto& out) { g.exclusive_scan(in, out); }),
       "exclusive_scan"},
      {"all_to_all",
       with_arrays(true, true, [](Group& g, auto& in, auto& out) { g.all_to_all(in, out); }),
       "all_to_all"},
      {"all_gather_rows",
       with_arrays(false, false, [](Group& g, auto& in, auto&) { (void)all_gather_rows(g, in); }),
       "all_gather"},
      {"all_to_all_rows",
       with_arrays(true, false,
                   [](Group& g, auto& in, auto&) { (void)all_to_all_rows(g, in, Rows(4)); }),
       "all_"},
      {"gather_all_tensors",
       with_arrays(false, false,
                   [](Group& g, auto& in, auto&) { (void)gather_all_tensors(g, in); }),
       "gather"},
  };
}

/// Two calls of one group, the second one by the ranks in `odd`.
struct Pair {
  NamedCall first;
  NamedCall second;
  std::set<int> odd;
};

/// The backend, and the hosts of its ranks ("aba").
struct Layout {
  std::string backend;
  std::string hosts;

  int size() const { return static_cast<int>(hosts.size()); }
};
std::string to_string(const Layout& layout) {
  return to_string(World{layout.backend, layout.size()}) + "_" + layout.hosts;
}
std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << to_string(layout);
}

/// The ranks of one host; with two hosts those of the second one, because all pairs come in both
/// orders; and each rank that has a neighbour on its host.
std::vector<std::set<int>> odd_ranks(const Layout& layout) {
  std::vector<std::set<int>> all;
  const std::set<char> hosts(layout.hosts.begin(), layout.hosts.end());
  const auto ranks_of = [&](char host) {
    std::set<int> ranks;
    for (int r = 0; r < layout.size(); ++r)
      if (layout.hosts[static_cast<std::size_t>(r)] == host) ranks.insert(r);
    return ranks;
  };
  for (const char host : hosts)
    if (hosts.size() > 2 || (hosts.size() == 2 && host != 'a')) all.push_back(ranks_of(host));
  for (int r = 0; r < layout.size(); ++r)
    if (ranks_of(layout.hosts[static_cast<std::size_t>(r)]).size() > 1) all.push_back({r});
  return all;
}

/// All pairs, or a sample with each call on both sides.
std::vector<Pair> pairs(const Layout& layout) {
  const auto all_calls = calls();
  const auto odd = odd_ranks(layout);
  std::vector<Pair> all;
  for (std::size_t i = 0; i < all_calls.size(); ++i)
    for (std::size_t step = 1; step < all_calls.size(); ++step) {
      // 7: the calls that are flat come after the first 7.
      if (!everything() && step != 7) continue;
      for (std::size_t k = 0; k < odd.size(); ++k)
        if (everything() || k == 0)
          all.push_back({all_calls[i], all_calls[(i + step) % all_calls.size()], odd[k]});
    }
  return all;
}

std::vector<Layout> layouts() {
  const auto has = [](std::string_view name) {
    const auto found = std::ranges::find(backends(), name, &BackendEntry::name);
    return found != backends().end() && found->unavailable().empty();
  };
  std::vector<Layout> all;
  for (const auto& [inner, outer] :
       {std::pair("local", "local"), {"shm", "gloo"}, {"shm", "tcp"}, {"shm", "ucx"}})
    if (has(inner) && has(outer))
      for (const auto* hosts :
           {"aba", "aab", "abb", "abc", "aaab", "aaba", "abaa", "abbb", "aabb", "abab", "abba",
            "aabc", "abac", "abca", "abbc", "abcb", "abcc", "aaa", "aaaa"})
        if (everything() || std::string_view(hosts) == "aba")
          all.push_back({fmt::format("hier:{}+{}", inner, outer), hosts});
  for (const auto* name : {"gloo", "shm", "tcp", "ucx"})
    if (everything() && has(name))
      for (const auto* hosts : {"aaa", "aaaa"}) all.push_back({name, hosts});
  return all;
}

class PairsOfCalls : public testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, PairsOfCalls, testing::ValuesIn(layouts()), CaseName());

TEST_P(PairsOfCalls, AreAnErrorOnEveryRankInTime) {
  const Layout& layout = GetParam();
  // So many groups wait at the same time. Ranks of ucx poll.
  const std::size_t at_once = layout.backend.ends_with("ucx") ? 8 : 30;
  std::string hosts;
  for (const char host : layout.hosts) hosts += fmt::format("{}{}", hosts.empty() ? "" : ",", host);
  const ScopedVariables variables{{"TUTTI_HOSTS", hosts.c_str()}, {"UCX_MEM_EVENTS", "n"}};
  const auto all = pairs(layout);
  Clock::duration longest{};
  for (std::size_t first = 0; first < all.size(); first += at_once) {
    const auto count = static_cast<int>(std::min(at_once, all.size() - first));
    RankBarrier phase(count * layout.size());
    std::vector<std::shared_ptr<Store>> stores;
    for (int i = 0; i < count; ++i) stores.push_back(make_memory_store());
    std::mutex mutex;
    on_threads(count * layout.size(), [&](int thread) {
      const int rank = thread % layout.size();
      const auto i = static_cast<std::size_t>(thread / layout.size());
      const Pair& pair = all[first + i];
      auto options = group_options({layout.backend, layout.size()}, rank, stores[i]);
      options.timeout = 10s;
      auto group = ProcessGroup::create(options);
      phase.wait();
      std::string text = "no error";
      const auto start = Clock::now();
      try {
        (pair.odd.contains(rank) ? pair.second : pair.first).make(group);
        group.barrier();  // The calls may have ended on a rank that sends only.
      } catch (const Error& error) {
        text = error.what();
      }
      const auto time = Clock::now() - start;
      phase.wait();  // A rank that leaves would be an error of its own.
      const std::lock_guard lock(mutex);
      longest = std::max<Clock::duration>(longest, time);
      const auto what = fmt::format("{} against {} of rank {}, on rank {}", pair.first.name,
                                    pair.second.name, fmt::join(pair.odd, ", "), rank);
      EXPECT_NE(text.find("mismatch"), std::string::npos) << what << ": " << text;
      for (const auto side : {pair.first.text, pair.second.text})
        EXPECT_NE(text.find(side), std::string::npos) << what << ": " << text;
      EXPECT_NE(text.find("; rank"), std::string::npos) << what << ": " << text;
      EXPECT_LT(time, patience() * 2s) << what << ": " << text;
    });
  }
  RecordProperty("longest_ms", fmt::format("{}", longest / 1ms));
  fmt::print("{}: {} pairs, at most {} ms\n", to_string(layout), all.size(), longest / 1ms);
}

}  // namespace
}  // namespace tutti::test
