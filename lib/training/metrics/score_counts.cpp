#include "metrics/score_counts.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <tutti/error.hpp>

#include "group/call.hpp"
#include "kernels/radix_sort.hpp"
#include "rows/gather_arrays.hpp"

namespace tutti::internal::metrics {
namespace {

/// A row, or all rows of this rank with equal score and target if the rows have no weights.
struct Entry {
  std::uint64_t key;
  double weight;  ///< As in ScoredRows::Row; without weights the number of rows.
};
using Entries = Raw<Entry>;

void sort(Entries& entries) {
  radix_sort(entries, [](const Entry& entry) { return entry.key; });
}

Entries entries_of(const tutti::metrics::ScoredRows& rows) {
  Entries entries(rows.rows().size());
  std::ranges::transform(rows.rows(), entries.begin(), [](const auto& row) {
    return Entry{ordered_key(row.score), row.weight};
  });
  sort(entries);
  if (rows.weighted()) return entries;
  auto out = entries.begin();
  for (auto in = entries.begin(); in != entries.end();) {
    const auto key = in->key;
    double positive = 0;
    double negative = 0;
    for (; in != entries.end() && in->key == key; ++in)
      (in->weight > 0 ? positive : negative) += in->weight;
    if (positive != 0) *out++ = {key, positive};
    if (negative != 0) *out++ = {key, negative};
  }
  entries.resize(static_cast<std::size_t>(out - entries.begin()));
  return entries;
}

ConstTensorView view_of(const Entries& entries) {
  return {entries.data(), DType::u64, {std::ssize(entries), 2}};
}

double largest_weight(const Entries& entries) {
  double largest = 0;
  for (const auto& entry : entries) largest = std::max(largest, std::abs(entry.weight));
  return largest;
}

/// Divides the range of all keys into one for each rank, so that each has about equally many of the
/// `total` entries, and sends every entry to its rank. Replaces `largest` by the largest of all
/// ranks.
Entries exchange(ProcessGroup& group, std::string_view caller, const Entries& entries,
                 std::int64_t total, double& largest, const CallOptions& options) {
  const auto ranks = static_cast<std::size_t>(group.size());
  // The same distance on every rank: a rank has samples in proportion to its entries.
  constexpr std::size_t samples_per_range = 64;
  const auto apart = static_cast<std::size_t>(total) / (samples_per_range * ranks) + 1;
  std::vector<std::uint64_t> mine{std::bit_cast<std::uint64_t>(largest)};
  for (auto i = apart / 2; i < entries.size(); i += apart) mine.push_back(entries[i].key);
  const ConstTensorView view(mine);
  const auto gathered =
      gather_host_arrays(group, {.caller = caller, .arrays = {&view, 1}}, options);
  const auto all = gathered.data[0].values<std::uint64_t>();
  std::vector<std::uint64_t> samples;
  for (int r = 0; r < group.size(); ++r) {
    const auto first = all.begin() + gathered.rows.offset(r);
    largest = std::max(largest, std::bit_cast<double>(*first));
    samples.insert(samples.end(), first + 1, first + gathered.rows[r]);
  }
  // Not empty: the rank with the most entries has more of them than `apart`.
  std::ranges::sort(samples);

  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received(ranks);
  for (auto first = entries.begin(); sent.size() < ranks;) {
    const auto next = sent.size() + 1;
    const auto last =
        next == ranks
            ? entries.end()
            : std::lower_bound(first, entries.end(), samples[samples.size() * next / ranks],
                               [](const Entry& e, auto key) { return e.key < key; });
    sent.push_back(last - first);
    first = last;
  }
  host_call(group, {.kind = Operation::all_to_all, .in = sent, .out = received}, options, {},
            caller);
  Entries own;
  const auto prepare = [&](Op& op) {
    const RowLayout rows(received);
    own.resize(static_cast<std::size_t>(rows.total()));
    op.out = {own.data(), DType::u64, {rows.total(), 2}};
  };
  host_call(
      group,
      {.kind = Operation::all_to_all, .in = view_of(entries), .rows = received, .send_rows = sent},
      options, prepare, caller);
  return own;
}

}  // namespace

ScoreCounts::ScoreCounts(ProcessGroup& group, std::string_view caller, std::string_view words,
                         const std::function<void()>& check, const tutti::metrics::ScoredRows& rows,
                         const CallOptions& options)
    : group_(group), caller_(caller), options_(options) {
  Entries entries;
  ConstTensorView view;
  const auto check_rows = [&](GatherRequest& request) {
    check();
    if (!rows.invalid().empty()) fail(Errc::invalid_argument, rows.invalid());
    entries = entries_of(rows);
    view = view_of(entries);
    request.arrays = {&view, 1};
  };
  const auto gathered = gather_host_arrays(
      group, {.caller = caller, .only_small = true, .check = check_rows, .agree = words}, options);
  double largest = largest_weight(entries);
  if (!gathered.data.empty()) {
    const auto* all = static_cast<const Entry*>(gathered.data[0].data());
    entries.assign(all, all + gathered.rows.total());
    sort(entries);
    largest = largest_weight(entries);
  } else if (group.size() > 1) {
    has_all_ = false;
    entries = exchange(group, caller, entries, gathered.rows.total(), largest, options);
    sort(entries);
  }

  int exponent = 0;
  (void)std::frexp(largest, &exponent);
  const auto units = [&](double weight) -> Int128 {
    if (!rows.weighted()) return static_cast<std::int64_t>(weight);
    return static_cast<Int128>(std::ldexp(weight, 80 - exponent));
  };
  steps_.reserve(entries.size() + 1);
  steps_.push_back({});
  for (const auto& entry : entries) {
    if (steps_.size() == 1 || steps_.back().key != entry.key) {
      steps_.push_back(steps_.back());
      steps_.back().key = entry.key;
    }
    if (entry.weight > 0)
      steps_.back().positive += units(entry.weight);
    else
      steps_.back().negative -= units(entry.weight);
  }
  total_ = steps_.back();
  if (has_all_) return;
  const auto sums = gather(std::vector{total_.positive, total_.negative});
  Step lower{};
  total_ = {};
  for (int r = 0; r < group.size(); ++r) {
    const auto at = 2 * static_cast<std::size_t>(r);
    if (r == group.rank()) lower = total_;
    total_.positive += sums[at];
    total_.negative += sums[at + 1];
  }
  for (auto& step : steps_) {
    step.positive += lower.positive;
    step.negative += lower.negative;
  }
}

std::vector<Int128> ScoreCounts::gather(std::span<const Int128> mine) const {
  const ConstTensorView row(mine.data(), DType::u64, {1, 2 * std::ssize(mine)});
  const auto gathered =
      gather_host_arrays(group_, {.caller = caller_, .arrays = {&row, 1}}, options_);
  std::vector<Int128> all(mine.size() * static_cast<std::size_t>(group_.size()));
  std::memcpy(all.data(), gathered.data[0].data(), gathered.data[0].bytes());
  return all;
}

void ScoreCounts::combine(std::vector<Int128>& numbers, std::size_t sums) const {
  if (has_all_) return;
  const auto all = gather(numbers);
  std::ranges::fill(numbers, 0);
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto& number = numbers[i % numbers.size()];
    number = i % numbers.size() < sums ? number + all[i] : std::max(number, all[i]);
  }
}

}  // namespace tutti::internal::metrics
