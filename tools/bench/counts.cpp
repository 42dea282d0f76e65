#include "bench/counts.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

constexpr double most_exponent = 16;
constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

/// What zipf gives to rank 0. Rounding to whole weights keeps hosts apart whose pow() differs in
/// the last bit from coming to different layouts.
constexpr double zipf_unit = 1 << 30;

__extension__ typedef unsigned __int128 Wide;

/// total * part / whole, rounded down, for part <= whole.
std::int64_t scaled(std::int64_t total, std::int64_t part, std::int64_t whole) {
  return static_cast<std::int64_t>(static_cast<Wide>(total) * static_cast<Wide>(part) /
                                   static_cast<Wide>(whole));
}

/// The one of several ranks that is unlike the others: neither the first nor, of three, the last.
std::size_t middle(int ranks) {
  return static_cast<std::size_t>(ranks / 2);
}

double parse_exponent(std::string_view text) {
  double exponent = -1;
  const char* end = text.data() + text.size();
  const auto [stop, problem] =
      std::from_chars(text.data(), end, exponent, std::chars_format::fixed);
  if (problem != std::errc() || stop != end || !(exponent >= 0 && exponent <= most_exponent))
    refuse("--counts 'zipf:{}': expected zipf:A with a number A from 0 to {}, such as zipf:1", text,
           most_exponent);
  return exponent;
}

/// Whole numbers between commas, spaces or line ends.
std::vector<std::int64_t> read_numbers(const std::string& path) {
  std::ifstream file(path);
  if (!file || (file.peek(), file.bad()))  // A folder opens, and cannot be read.
    refuse("--counts file:{}: cannot be read", path);
  constexpr std::string_view separators = ", \t\r\n";
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::int64_t> numbers;
  std::int64_t sum = 0;
  std::string_view rest = text;
  while (true) {
    const std::size_t begin = rest.find_first_not_of(separators);
    if (begin == std::string_view::npos) break;
    rest.remove_prefix(begin);
    const std::string_view item = rest.substr(0, rest.find_first_of(separators));
    rest.remove_prefix(item.size());
    std::int64_t number = -1;
    const auto [stop, problem] = std::from_chars(item.data(), item.data() + item.size(), number);
    if (problem != std::errc() || stop != item.data() + item.size() || number < 0)
      refuse("--counts file:{}: '{}' is not a whole number of at least 0", path,
             item.substr(0, 40));
    if (number > largest - sum) refuse("--counts file:{}: the sum does not fit in 63 bits", path);
    sum += number;
    numbers.push_back(number);
  }
  if (sum == 0) refuse("--counts file:{}: expected one number per rank, not all of them 0", path);
  return numbers;
}

}  // namespace

Counts Counts::parse(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, Kind>, 6> plain{
      {{"even", Kind::even},
       {"last-short", Kind::last_short},
       {"one-empty", Kind::one_empty},
       {"mild", Kind::mild},
       {"linear", Kind::linear},
       {"one-only", Kind::one_only}}};
  Counts counts;
  counts.name_ = text;
  for (const auto& [name, kind] : plain) {
    counts.kind_ = kind;
    if (name == text) return counts;
  }
  const std::size_t colon = text.find(':');
  const std::string_view form = text.substr(0, colon);
  const std::string_view rest =
      colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  if (form == "zipf") {
    counts.kind_ = Kind::zipf;
    counts.exponent_ = parse_exponent(rest);
    return counts;
  }
  if (form == "file" && !rest.empty()) {
    counts.kind_ = Kind::file;
    counts.numbers_ = read_numbers(std::string(rest));
    return counts;
  }
  refuse(
      "--counts '{}': expected even, last-short, one-empty, mild, linear, zipf:A, one-only or "
      "file:PATH",
      text);
}

std::vector<std::int64_t> Counts::weights(int ranks) const {
  std::vector<std::int64_t> weights(static_cast<std::size_t>(ranks), 1);
  const auto by_rank = [&](auto weight) {
    for (int r = 0; r < ranks; ++r) weights[static_cast<std::size_t>(r)] = weight(r);
  };
  switch (kind_) {
    case Kind::even:
      break;
    case Kind::last_short:
      by_rank([&](int r) { return r + 1 < ranks ? 2 : 1; });
      break;
    case Kind::one_empty:
      if (ranks == 1) refuse("--counts one-empty: needs two ranks; there is one");
      weights[middle(ranks)] = 0;
      break;
    case Kind::mild:  // From 0.9 to 1.1 of the mean.
      by_rank(
          [&](int r) { return std::max<std::int64_t>(1, 9 * std::int64_t{ranks - 1} + 2 * r); });
      break;
    case Kind::linear:
      by_rank([](int r) { return r + 1; });
      break;
    case Kind::one_only:
      std::fill(weights.begin(), weights.end(), 0);
      weights[middle(ranks)] = 1;
      break;
    case Kind::zipf:
      by_rank([&](int r) { return std::llround(zipf_unit * std::pow(r + 1, -exponent_)); });
      break;
    case Kind::file:
      if (std::ssize(numbers_) != ranks)
        refuse("--counts {}: it has {} number{} for {} rank{}; expected one per rank", name_,
               numbers_.size(), numbers_.size() == 1 ? "" : "s", ranks, ranks == 1 ? "" : "s");
      weights = numbers_;
      break;
  }
  return weights;
}

RowLayout Counts::cut(std::int64_t total, int ranks) const {
  std::vector<std::int64_t> blocks = weights(ranks);
  std::int64_t whole = 0;
  for (const std::int64_t weight : blocks) whole += weight;
  // Where each block ends is rounded, so that no error adds up.
  std::int64_t passed = 0;
  std::int64_t begin = 0;
  for (std::int64_t& block : blocks) {
    passed += block;
    const std::int64_t end = scaled(total, passed, whole);
    block = end - begin;
    begin = end;
  }
  return RowLayout(blocks);
}

const std::string_view counts_syntax =
    R"(Blocks (--counts): how S is cut into those of the ranks; a list measures each.
  even          all alike
  last-short    the last rank has half of what each other one has
  one-empty     rank n/2 has nothing, the others are alike
  mild          from 0.9 of the mean (rank 0) to 1.1 of it
  linear        rank r has r + 1 parts
  zipf:A        rank r has 1/(r + 1)^A parts
  one-only      rank n/2 has everything
  file:PATH     one whole number per rank: the parts; the counts themselves when
                S is as many elements as they add up to
)";

}  // namespace tutti::tool
