#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "commands.hpp"
#include "ranks.hpp"

namespace tutti::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// One implementation of an operation, and its times.
struct Variant {
  std::string name;
  std::function<void(int call)> run;
  std::vector<double> rounds{};  ///< Seconds per call: in each round the slowest rank's mean.
  std::vector<double> calls{};   ///< Seconds of each call on this rank.

  bool bare() const { return name.starts_with("gloo"); }
};

double percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

/// The arrays of one rank and the two transports. Every variant has its own connections and
/// transport thread: the scheduler favours threads that have just run, which matters more than the
/// differences to be measured.
class Contest {
 public:
  Contest(Ranks& ranks, const CompareOptions& options)
      : ranks_(ranks), options_(options), group_(ranks.connect_tutti()) {
    if (options.plain) plain_ = ranks.connect_tutti({.batch = false, .reno = false});
    for (auto& bare : bare_) bare = ranks.connect_bare();
    const auto largest = *std::ranges::max_element(options.sizes);
    // Every rank has at least one element, even if the total is smaller.
    const auto count = largest / sizeof(float) + static_cast<std::size_t>(ranks.size());
    in_.assign(count, 1.0F);
    out_.assign(count, 0.0F);
  }

  void run(const std::string& operation) {
    if (operation == "barrier") return report(operation, 0, contest(operation, 0));
    for (const auto bytes : options_.sizes) report(operation, bytes, contest(operation, bytes));
  }

 private:
  std::vector<Variant> variants(const std::string& operation, std::size_t bytes) {
    const auto w = static_cast<std::size_t>(ranks_.size());
    const auto me = static_cast<std::size_t>(ranks_.rank());
    const auto count = std::max<std::size_t>(bytes / sizeof(float), 1);
    const auto in = std::span(in_).first(count);
    const auto out = std::span(out_).first(count);
    const auto size = ranks_.size();
    std::vector<Variant> all;
    const auto add = [&](std::string name, std::function<void(int)> run) {
      all.push_back({std::move(name), std::move(run)});
    };
    const auto add_tutti = [&](const std::function<void(ProcessGroup&, int)>& run) {
      add("tutti", [this, run](int call) { run(group_, call); });
      if (plain_) add("tutti plain", [this, run](int call) { run(*plain_, call); });
    };
    if (operation == "all_reduce") {
      using Algorithm = Bare::Algorithm;
      add_tutti([=](ProcessGroup& group, int) { group.all_reduce(out); });
      for (const auto& [name, algorithm] :
           {std::pair{"gloo", Algorithm::UNSPECIFIED}, std::pair{"gloo ring", Algorithm::RING},
            std::pair{"gloo bcube", Algorithm::BCUBE}})
        add(name, [=, this](int) { bare_[0]->all_reduce(out, algorithm); });
    } else if (operation == "all_gather") {
      const auto each = std::max<std::size_t>(count / w, 1);
      const auto mine = std::span(in_).first(each);
      const auto whole = std::span(out_).first(each * w);
      add_tutti([=](ProcessGroup& group, int) { group.all_gather(mine, whole); });
      add("gloo", [=, this](int) { bare_[0]->all_gather(mine, whole); });
    } else if (operation == "all_gather_rows") {  // Rank r has r + 1 shares.
      const auto each = std::max<std::size_t>(count / (w * (w + 1) / 2), 1);
      std::vector<std::int64_t> rows;
      std::vector<std::size_t> counts;
      for (std::size_t r = 0; r < w; ++r) counts.push_back((r + 1) * each);
      rows.assign(counts.begin(), counts.end());
      in_.resize(std::max(in_.size(), counts.back()));
      out_.resize(std::max(out_.size(), each * w * (w + 1) / 2));
      const auto mine = std::span(in_).first(counts[me]);
      const auto whole = std::span(out_).first(each * w * (w + 1) / 2);
      add_tutti([=](ProcessGroup& group, int) { group.all_gather(mine, whole, std::span(rows)); });
      add("gloo", [=, this](int) { bare_[0]->all_gather_rows(mine, whole, counts); });
    } else if (operation == "broadcast") {
      add_tutti([=](ProcessGroup& group, int call) { group.broadcast(out, call % size); });
      add("gloo", [=, this](int call) { bare_[0]->broadcast(out, call % size); });
    } else if (operation == "reduce") {
      add_tutti([=](ProcessGroup& group, int call) { group.reduce(in, out, call % size); });
      add("gloo", [=, this](int call) { bare_[0]->reduce(in, out, call % size); });
    } else if (operation == "barrier") {
      add_tutti([](ProcessGroup& group, int) { group.barrier(); });
      add("gloo", [this](int) { bare_[0]->barrier(); });
    } else {
      throw std::invalid_argument("unknown operation " + operation);
    }
    return all;
  }

  std::vector<Variant> contest(const std::string& operation, std::size_t bytes) {
    auto all = variants(operation, bytes);
    const int calls = bytes >= 16U << 20  ? std::max(options_.calls / 10, 1)
                      : bytes >= 1U << 20 ? std::max(options_.calls / 2, 1)
                                          : options_.calls;
    std::vector<std::size_t> order(all.size());
    std::iota(order.begin(), order.end(), 0);
    for (int round = -1; round < options_.rounds; ++round) {
      std::ranges::shuffle(order, random_);  // Equal on all ranks.
      for (const auto next : order) {
        auto& variant = all[next];
        // A sum would grow from call to call.
        std::ranges::fill(std::span(out_).first(std::min<std::size_t>(out_.size(), 1 << 12)), 0.0F);
        for (int call = 0; call < calls / 5 + 1; ++call) variant.run(call);
        ranks_.meet();
        const auto start = Clock::now();
        auto before = start;
        for (int call = 0; call < calls; ++call) {
          variant.run(call);
          const auto now = Clock::now();
          if (round >= 0)
            variant.calls.push_back(std::chrono::duration<double>(now - before).count());
          before = now;
        }
        const auto each = ranks_.largest(seconds_since(start) / calls);
        if (round >= 0) variant.rounds.push_back(each);
      }
    }
    return all;
  }

  void report(const std::string& operation, std::size_t bytes, const std::vector<Variant>& all) {
    if (ranks_.rank() != 0) return;
    auto best = std::numeric_limits<double>::infinity();
    for (const auto& v : all)
      if (v.bare()) best = std::min(best, percentile(v.rounds, 0.2));
    for (const auto& v : all) {
      const auto p20 = percentile(v.rounds, 0.2);
      const auto slow = std::ranges::count_if(v.calls, [](double s) { return s > 1e-3; });
      fmt::print(
          "{:<16} {:>9} {:<11} {:>10.1f} {:>10.1f} {:>10.1f} {:>8.1f} {:>8.2f}  ", operation, bytes,
          v.name, p20 * 1e6, percentile(v.rounds, 0.5) * 1e6, percentile(v.calls, 0.99) * 1e6,
          100.0 * static_cast<double>(slow) / static_cast<double>(v.calls.size()), p20 / best);
      if (v.bare()) {
        fmt::print("\n");
        continue;
      }
      const auto allowed = best + std::max(0.05 * best, 2e-6);
      fmt::print("{}", p20 <= allowed ? "meets" : "misses");
      if (operation == "all_reduce")
        fmt::print(", {:.2f}x gloo's own choice",
                   percentile(std::ranges::find(all, "gloo", &Variant::name)->rounds, 0.2) / p20);
      fmt::print("\n");
    }
    std::fflush(stdout);
  }

  Ranks& ranks_;
  const CompareOptions& options_;
  ProcessGroup group_;
  std::optional<ProcessGroup> plain_;  // Without the library's settings of the system.
  std::array<std::unique_ptr<Bare>, 3> bare_;
  std::vector<float> in_;
  std::vector<float> out_;
  std::minstd_rand random_;
};

}  // namespace

int compare(const CompareOptions& options) {
  fmt::print("{} ranks, {} rounds of {} calls, microseconds per call\n", options.ranks,
             options.rounds, options.calls);
  fmt::print("{:<16} {:>9} {:<11} {:>10} {:>10} {:>10} {:>8} {:>8}\n", "operation", "bytes", "",
             "p20", "median", "call p99", "% > 1ms", "to best");
  const Load load(options.load);
  return run_ranks(options.ranks, [&](Ranks& ranks) {
    Contest contest(ranks, options);
    for (const auto& operation : options.operations) contest.run(operation);
    ranks.meet();
  });
}

}  // namespace tutti::bench
