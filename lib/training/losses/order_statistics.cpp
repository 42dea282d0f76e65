#include "losses/order_statistics.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/radix_sort.hpp"

namespace tutti::internal::losses {
namespace {

/// The state of the search for one order statistic.
struct Search {
  std::size_t list;
  std::uint64_t prefix = 0;  ///< Highest bytes of its key, found so far.
  std::int64_t index = 0;    ///< Its position among the keys with this prefix.
};

constexpr std::size_t bins = 256;

using tutti::losses::Interpolation;

/// Interpolates between two order statistics in the type of the scores, with the two formulas of
/// torch.lerp. The rounding has to be torch's, because a score may equal the threshold.
template <typename T>
double lerp(double low, double high, double weight) {
  const T a = static_cast<T>(low);
  const T b = static_cast<T>(high);
  const T w = static_cast<T>(weight);
  return w < T{0.5} ? a + w * (b - a) : b - (b - a) * (T{1} - w);
}

double interpolate(Interpolation how, double low, double high, double weight, bool in_float) {
  switch (how) {
    case Interpolation::lower:
      return low;
    case Interpolation::higher:
      return high;
    case Interpolation::nearest:
      return weight == 0 ? low : high;
    case Interpolation::midpoint:
      weight = 0.5;
      break;
    case Interpolation::linear:
      break;
  }
  return in_float ? lerp<float>(low, high, weight) : lerp<double>(low, high, weight);
}

/// Returns the weight of index.high for Interpolation::nearest: 0 or 1. In the middle the even
/// index counts.
double nearest_weight(const QuantileIndex& index) {
  if (index.weight != 0.5) return index.weight < 0.5 ? 0 : 1;
  return index.low % 2 == 0 ? 0 : 1;
}

/// Sorts the keys of the scores. before[i]: the copies of the keys before keys[i].
template <typename Key>
void sort_with_copies(const Select& list, Raw<Key>& keys, std::vector<std::int64_t>& before) {
  using Score = decltype(score_of(Key{}));
  struct Item {
    Key key;
    std::int64_t copies;
  };
  Raw<Item> items(list.scores.size());
  for (std::size_t i = 0; i < items.size(); ++i)
    items[i] = {ordered_key(static_cast<Score>(list.scores[i])), list.copies[i]};
  radix_sort(items, [](const Item& item) { return item.key; });
  keys.resize(items.size());
  before.assign(1, 0);
  for (std::size_t i = 0; i < items.size(); ++i) {
    keys[i] = items[i].key;
    before.push_back(before.back() + items[i].copies);
  }
}

template <typename Score>
std::vector<std::vector<double>> statistics_of(std::span<const Select> lists, const AddUp& add_up) {
  using Key = decltype(ordered_key(Score{}));
  std::vector<Raw<Key>> keys(lists.size());
  std::vector<std::vector<std::int64_t>> before(lists.size());  // Copies of lower keys.
  std::vector<Search> searches;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    for (const auto index : lists[i].indices) searches.push_back({i, 0, index});
    if (lists[i].indices.empty()) continue;
    if (!lists[i].copies.empty()) {
      sort_with_copies(lists[i], keys[i], before[i]);
      continue;
    }
    keys[i].resize(lists[i].scores.size());
    std::ranges::transform(lists[i].scores, keys[i].begin(),
                           [](double score) { return ordered_key(static_cast<Score>(score)); });
    radix_sort(keys[i], std::identity());
  }
  std::vector<std::int64_t> counts(searches.size() * bins);
  for (int left = sizeof(Key) - 1; left >= 0 && !searches.empty(); --left) {
    const int shift = 8 * left;
    std::ranges::fill(counts, 0);
    for (std::size_t s = 0; s < searches.size(); ++s) {
      const auto& sorted = keys[searches[s].list];
      auto from = std::lower_bound(sorted.begin(), sorted.end(),
                                   static_cast<Key>(searches[s].prefix << (shift + 7) << 1));
      for (std::size_t bin = 0; bin < bins; ++bin) {
        const auto last = static_cast<Key>(((searches[s].prefix << 8 | bin) << shift) |
                                           ((std::uint64_t{1} << shift) - 1));
        const auto to = std::upper_bound(from, sorted.end(), last);
        const auto& copies = before[searches[s].list];
        counts[s * bins + bin] = copies.empty()
                                     ? to - from
                                     : copies[static_cast<std::size_t>(to - sorted.begin())] -
                                           copies[static_cast<std::size_t>(from - sorted.begin())];
        from = to;
      }
    }
    add_up(counts);
    for (std::size_t s = 0; s < searches.size(); ++s) {
      auto& search = searches[s];
      std::size_t bin = 0;
      for (; bin + 1 < bins && search.index >= counts[s * bins + bin]; ++bin)
        search.index -= counts[s * bins + bin];
      search.prefix = search.prefix << 8 | bin;
    }
  }
  std::vector<std::vector<double>> found(lists.size());
  for (const auto& search : searches)
    found[search.list].push_back(score_of(static_cast<Key>(search.prefix)));
  return found;
}

}  // namespace

std::vector<std::vector<double>> order_statistics(std::span<const Select> lists, int bytes,
                                                  const AddUp& add_up) {
  return bytes == 4 ? statistics_of<float>(lists, add_up) : statistics_of<double>(lists, add_up);
}

QuantileIndex quantile_index(double q, std::int64_t n, bool in_float) {
  const double index =
      (in_float ? static_cast<double>(static_cast<float>(q)) : q) * static_cast<double>(n - 1);
  const auto low = std::clamp<std::int64_t>(static_cast<std::int64_t>(std::floor(index)), 0, n - 1);
  const auto high = std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(index)), 0, n - 1);
  return {low, high, index - std::floor(index)};
}

namespace {

std::vector<std::vector<double>> quantiles_by_weight(std::span<const Quantiles> lists,
                                                     bool in_float, const AddUp& add_up,
                                                     const AddUpWeights& add_up_weights) {
  std::vector<double> masses;
  for (const auto& list : lists)
    masses.push_back(std::accumulate(list.weights.begin(), list.weights.end(), 0.0));
  add_up_weights(masses);
  std::vector<WeightedQuantiles> weighted;
  for (std::size_t i = 0; i < lists.size(); ++i)
    weighted.push_back({lists[i].scores, lists[i].weights, masses[i],
                        masses[i] > 0 ? lists[i].q : std::vector<double>()});
  return weighted_quantiles_of(weighted, in_float, add_up);
}

}  // namespace

std::vector<std::vector<double>> quantiles_of(std::span<const Quantiles> lists,
                                              const QuantileRule& rule, const AddUp& add_up,
                                              const AddUpWeights& add_up_weights) {
  const auto [how, budget, in_float] = rule;
  if (budget == tutti::losses::Budget::weight)
    return quantiles_by_weight(lists, in_float, add_up, add_up_weights);
  // Searches each position once, because the thresholds of a class often share positions.
  std::vector<Select> wanted;
  struct Between {
    std::size_t low, high;  // Indices into Select::indices.
    double weight;
  };
  std::vector<std::vector<Between>> all(lists.size());
  for (std::size_t i = 0; i < lists.size(); ++i) {
    auto& indices = wanted.emplace_back(Select{.scores = lists[i].scores}).indices;
    const auto index_of = [&indices](std::int64_t index) {
      const auto found = std::ranges::find(indices, index);
      if (found != indices.end()) return static_cast<std::size_t>(found - indices.begin());
      indices.push_back(index);
      return indices.size() - 1;
    };
    for (const double q : lists[i].q) {
      auto index = quantile_index(q, lists[i].total, in_float);
      if (how == Interpolation::nearest) index.weight = nearest_weight(index);
      if (how == Interpolation::lower || index.weight == 0) index.high = index.low;
      if (how == Interpolation::higher || index.weight == 1) index.low = index.high;
      const auto low = index_of(index.low);
      all[i].push_back({low, index_of(index.high), index.weight});
    }
  }
  const auto found = order_statistics(wanted, in_float ? 4 : 8, add_up);
  std::vector<std::vector<double>> values(lists.size());
  for (std::size_t i = 0; i < lists.size(); ++i)
    for (const auto& between : all[i])
      values[i].push_back(interpolate(how, found[i][between.low], found[i][between.high],
                                      between.weight, in_float));
  return values;
}

std::vector<std::vector<double>> weighted_quantiles_of(std::span<const WeightedQuantiles> lists,
                                                       bool in_float, const AddUp& add_up) {
  std::vector<std::vector<std::int64_t>> copies(lists.size());
  std::vector<std::int64_t> totals(lists.size());
  bool wanted = false;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    if (lists[i].q.empty()) continue;
    wanted = true;
    // Sums of doubles differ in their last bits between splits, the unit does not: the factor puts
    // the places where it doubles between sums that are likely. The sum of all is below 2^52 units,
    // which doubles hold.
    int exponent = 0;
    const double fraction = std::frexp(lists[i].mass, &exponent);
    const int unit = exponent + std::ilogb(fraction * (1 + std::ldexp(1, -20))) - 50;
    for (const double weight : lists[i].weights) {
      copies[i].push_back(std::llround(std::scalbn(weight, -unit)));
      totals[i] += copies[i].back();
    }
  }
  if (wanted) add_up(totals);
  std::vector<Select> selects(lists.size());
  for (std::size_t i = 0; i < lists.size(); ++i) {
    selects[i] = {.scores = lists[i].scores, .copies = copies[i]};
    for (const double q : lists[i].q) {
      // A share such as 1 - 0.42 and weights such as 0.1 are rounded, which must not exclude a row
      // whose sum is the share.
      const auto total = static_cast<double>(totals[i]);
      const auto least = static_cast<std::int64_t>(std::ceil(q * total - std::ldexp(total, -32)));
      selects[i].indices.push_back(std::clamp<std::int64_t>(least, 1, totals[i]) - 1);
    }
  }
  return order_statistics(selects, in_float ? 4 : 8, add_up);
}

}  // namespace tutti::internal::losses
