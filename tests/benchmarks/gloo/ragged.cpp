#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <tutti/gather.hpp>
#include <tutti/process_group.hpp>

#include "commands.hpp"

// One rank on a network whose links are slower than the machine. No all_gather or reduce_scatter
// can be faster than max over r of (S - b_r) / B, with S bytes in all, b_r of rank r, and B the
// bandwidth of a link.

namespace tutti::bench {
namespace {

struct Layout {
  std::string name;
  std::function<double(int rank)> weight;
};

std::vector<std::int64_t> rows_of(const Layout& layout, int size, std::int64_t total) {
  double sum = 0;
  for (int r = 0; r < size; ++r) sum += layout.weight(r);
  std::vector<std::int64_t> rows;
  for (int r = 0; r < size; ++r)
    rows.push_back(static_cast<std::int64_t>(static_cast<double>(total) * layout.weight(r) / sum));
  return rows;
}

class Network {
 public:
  explicit Network(const RaggedOptions& options)
      : options_(options),
        group_(ProcessGroup::create({.backend = "gloo:" + options.interface,
                                     .store = open_store(options.store),
                                     .rank = options.rank,
                                     .size = options.ranks,
                                     .timeout = std::chrono::minutes(2)})) {}

  /// Median of the seconds until the last rank has finished.
  double time(int repeats, const std::function<void()>& call) {
    std::vector<double> all;
    for (int i = 0; i < repeats; ++i) {
      group_.barrier();
      const auto start = std::chrono::steady_clock::now();
      call();
      std::vector<double> seconds = {
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
      group_.all_reduce(seconds, ReduceOp::max);
      all.push_back(seconds[0]);
    }
    std::ranges::sort(all);
    return all[all.size() / 2];
  }

  /// Bytes per second of one link in one direction.
  double bandwidth() {
    std::vector<float> data(count(), 1.0F);
    const auto seconds = time(options_.repeats, [&] {
      if (options_.rank == 0) group_.send(data, 1);
      if (options_.rank == 1) group_.recv(data, 0);
    });
    return static_cast<double>(data.size() * sizeof(float)) / seconds;
  }

  /// True if the layout meets its targets.
  bool measure(const Layout& layout, double bytes_per_second) {
    const auto rows = rows_of(layout, options_.ranks, static_cast<std::int64_t>(count()));
    const auto mine = rows[static_cast<std::size_t>(options_.rank)];
    const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    const auto least = *std::ranges::min_element(rows);
    const auto most = *std::ranges::max_element(rows);
    const auto bound =
        static_cast<double>(total - least) * static_cast<double>(sizeof(float)) / bytes_per_second;

    std::vector<float> own(static_cast<std::size_t>(mine), static_cast<float>(options_.rank + 1));
    std::vector<float> whole(static_cast<std::size_t>(total));
    const auto gather =
        time(options_.repeats, [&] { group_.all_gather(own, whole, std::span(rows)); });
    check(whole, rows);
    GatheredRows gathered;
    const auto unknown =
        time(options_.repeats, [&] { gathered = all_gather_rows(group_, ConstTensorView(own)); });
    check({static_cast<const float*>(gathered.data.data()), whole.size()}, rows);

    std::vector<float> padded(static_cast<std::size_t>(most));
    std::vector<float> padded_whole(padded.size() * static_cast<std::size_t>(options_.ranks));
    const auto padding = time(1, [&] { group_.all_gather(padded, padded_whole); });

    std::ranges::fill(whole, 1.0F);
    const auto scatter =
        time(options_.repeats, [&] { group_.reduce_scatter(whole, own, std::span(rows)); });
    if (std::ranges::any_of(own, [&](float x) { return x != static_cast<float>(options_.ranks); }))
      throw std::runtime_error("reduce_scatter: a wrong element");

    // Compares a reduce_scatter of a gradient with an all_reduce, of which each rank uses its own
    // rows.
    const auto whole_reduce = time(1, [&] { group_.all_reduce(whole); });

    const bool close = gather <= 1.15 * bound && unknown <= 1.15 * bound;
    // At least 5 times for 8 ranks; 7 is the optimum.
    const bool gains = layout.name != "one" || padding * 7 >= 5 * (options_.ranks - 1) * gather;
    if (options_.rank == 0) {
      fmt::print(
          "{:<7} {:>8.3f} {:>11.3f} {:>6.3f} {:>15.3f} {:>6.3f} {:>15.3f} {:>6.3f} {:>10.3f} "
          "{:>5.2f} {:>10.3f} {:>5.2f}  {}\n",
          layout.name, bound, gather, gather / bound, unknown, unknown / bound, scatter,
          scatter / bound, padding, padding / gather, whole_reduce, whole_reduce / scatter,
          close && gains ? "meets" : "misses");
      std::fflush(stdout);
    }
    return close && gains;
  }

  /// Compares unknown sizes with known ones; true if they take at most 1.3 times as long.
  bool measure_small(const Layout& layout, std::int64_t bytes) {
    const auto rows = rows_of(layout, options_.ranks, bytes);
    const auto mine = rows[static_cast<std::size_t>(options_.rank)];
    const RowLayout known(rows);
    std::vector<std::uint8_t> own(static_cast<std::size_t>(mine), 1);
    std::vector<double> with;
    std::vector<double> without;
    for (int i = 0; i < 41; ++i) {
      with.push_back(time(
          1, [&] { (void)all_gather_rows(group_, ConstTensorView(own), {.layout = &known}); }));
      without.push_back(time(1, [&] { (void)all_gather_rows(group_, ConstTensorView(own)); }));
    }
    std::ranges::sort(with);
    std::ranges::sort(without);
    const auto ratio = without[20] / with[20];
    if (options_.rank == 0)
      fmt::print("{:<7} {:>8} {:>11.1f} {:>11.1f} {:>6.2f}  {}\n", layout.name, bytes,
                 with[20] * 1e6, without[20] * 1e6, ratio, ratio <= 1.3 ? "meets" : "misses");
    return ratio <= 1.3;
  }

 private:
  std::size_t count() const { return options_.bytes / sizeof(float); }

  static void check(std::span<const float> whole, std::span<const std::int64_t> rows) {
    std::size_t next = 0;
    for (std::size_t r = 0; r < rows.size(); ++r)
      for (std::int64_t i = 0; i < rows[r]; ++i)
        if (whole[next++] != static_cast<float>(r + 1))
          throw std::runtime_error("all_gather: a wrong element");
  }

  const RaggedOptions& options_;
  ProcessGroup group_;
};

}  // namespace

int ragged(const RaggedOptions& options) {
  Network network(options);
  const auto bytes_per_second = network.bandwidth();
  if (options.rank == 0)
    fmt::print(
        "{} ranks, {} bytes in all, one link carries {:.1f} Mbit/s; seconds\n"
        "{:<7} {:>8} {:>11} {:>6} {:>15} {:>6} {:>15} {:>6} {:>10} {:>5} {:>10} {:>5}\n",
        options.ranks, options.bytes, bytes_per_second * 8e-6, "layout", "bound", "all_gather",
        "ratio", "sizes unknown", "ratio", "reduce_scatter", "ratio", "padding", "gain",
        "all_reduce", "gain");
  const int size = options.ranks;
  bool all = true;
  const std::vector<Layout> layouts{
      Layout{"equal", [](int) { return 1.0; }},
      Layout{"mild", [](int r) { return 1.0 + 0.1 * (r % 3 - 1); }},
      Layout{"linear", [](int r) { return r + 1.0; }},
      Layout{"zipf", [](int r) { return 1.0 / (r + 1); }},
      Layout{"one", [size](int r) { return r == size / 2 ? 1.0 : 0.0; }}};
  for (const auto& layout : layouts) all = network.measure(layout, bytes_per_second) && all;
  if (options.rank == 0)
    fmt::print("\n{:<7} {:>8} {:>11} {:>11} {:>6}\n", "layout", "bytes", "known, us", "unknown, us",
               "ratio");
  for (const auto& layout : layouts)
    for (const std::int64_t bytes : {64, 4096, 65536})
      all = network.measure_small(layout, bytes) && all;
  return all ? 0 : 1;
}

}  // namespace tutti::bench
