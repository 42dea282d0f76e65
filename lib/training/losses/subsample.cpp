#include "losses/subsample.hpp"

#include <algorithm>

#include "values/philox.hpp"

namespace tutti::internal::losses {
namespace {

/// A row's keys in the two random orders of subsample(), lowest first: integers below 2^52, which
/// are exact in doubles.
struct Priority {
  double in_class, in_rest;
};

Priority priority(std::int64_t number, std::uint64_t seed, std::int64_t call) {
  const auto low = [](auto x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](auto x) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(x) >> 32);
  };
  const auto words =
      philox({low(number), high(number), low(call), high(call)}, {low(seed), high(seed)});
  const auto join = [](std::uint32_t a, std::uint32_t b) {
    return static_cast<double>((std::uint64_t{a} << 32 | b) >> 12);
  };
  return {join(words[0], words[1]), join(words[2], words[3])};
}

}  // namespace

std::vector<std::uint8_t> subsample(const Population& population, std::int64_t size,
                                    std::uint64_t seed, std::int64_t call, const AddUp& add_up) {
  const auto rows = population.numbers.size();
  const auto kinds = population.totals.size();
  std::vector<Priority> priorities;
  for (const auto number : population.numbers) priorities.push_back(priority(number, seed, call));

  const auto observed =
      static_cast<std::int64_t>(kinds) - std::ranges::count(population.totals, std::int64_t{0});
  const auto quota = std::max<std::int64_t>(1, size / (2 * std::max<std::int64_t>(observed, 1)));
  std::int64_t reserved = 0;
  std::vector<std::vector<double>> of_kind(kinds);
  std::vector<Select> lists(kinds);
  for (std::size_t i = 0; i < rows; ++i)
    of_kind[population.kinds[i]].push_back(priorities[i].in_class);
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    reserved += std::min(population.totals[kind], quota);
    lists[kind].scores = of_kind[kind];
    if (population.totals[kind] > quota) lists[kind].indices = {quota - 1};
  }
  const auto limits = order_statistics(lists, 8, add_up);
  std::vector<std::uint8_t> chosen(rows);
  for (std::size_t i = 0; i < rows; ++i) {
    const auto& limit = limits[population.kinds[i]];
    chosen[i] = limit.empty() || priorities[i].in_class <= limit[0] ? 1 : 0;
  }

  // Draws the missing rows from the remaining ones. If too many are chosen, draws `size` of those.
  const bool too_many = reserved > size;
  const auto wanted = too_many ? size : size - reserved;
  std::vector<double> rest;
  for (std::size_t i = 0; i < rows; ++i)
    if ((chosen[i] != 0) == too_many) rest.push_back(priorities[i].in_rest);
  double limit = -1;
  if (wanted > 0) {
    const Select select{.scores = rest, .indices = {wanted - 1}};
    limit = order_statistics({&select, 1}, 8, add_up)[0][0];
  }
  for (std::size_t i = 0; i < rows; ++i)
    if ((chosen[i] != 0) == too_many) chosen[i] = priorities[i].in_rest <= limit ? 1 : 0;
  return chosen;
}

}  // namespace tutti::internal::losses
