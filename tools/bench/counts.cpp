#include "bench/counts.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <sstream>

#include <fmt/format.h>

#include "common/exit_code.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

constexpr std::int64_t largest_count = std::numeric_limits<std::int64_t>::max();

/// The weight of rank 0 with zipf. Weights are rounded to integers, so that hosts whose pow()
/// differs in the last bit compute the same layout.
constexpr double zipf_unit = 1 << 30;

__extension__ typedef unsigned __int128 Wide;

/// total * part / whole, rounded down, for part <= whole.
std::int64_t scaled(std::int64_t total, std::int64_t part, std::int64_t whole) {
  return static_cast<std::int64_t>(static_cast<Wide>(total) * static_cast<Wide>(part) /
                                   static_cast<Wide>(whole));
}

/// A form without an argument: the weight of a rank.
struct Form {
  std::string_view name;
  std::int64_t (*weight)(int rank, int ranks);
};
// The special rank is n/2, because it is not the first, and with three ranks not the last.
constexpr std::array<Form, 5> forms{{
    {"last-short", [](int r, int n) -> std::int64_t { return r + 1 < n ? 2 : 1; }},
    {"one-empty",
     [](int r, int n) -> std::int64_t {
       if (n == 1) refuse("--counts one-empty: needs two ranks; there is one");
       return r == n / 2 ? 0 : 1;
     }},
    {"mild",  // From 0.9 to 1.1 of the mean.
     [](int r, int n) { return std::max<std::int64_t>(1, 9 * std::int64_t{n - 1} + 2 * r); }},
    {"linear", [](int r, int) -> std::int64_t { return r + 1; }},
    {"one-only", [](int r, int n) -> std::int64_t { return r == n / 2 ? 1 : 0; }},
}};

/// Reads whole numbers between commas, spaces or line ends.
std::vector<std::int64_t> read_numbers(const std::string& path) {
  std::ifstream file(path);
  if (!file || (file.peek(), file.bad()))  // A folder can be opened, but not read.
    refuse("--counts file:{}: cannot be read", path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::ranges::replace(text, ',', ' ');
  std::istringstream words(text);
  std::vector<std::int64_t> numbers;
  std::int64_t sum = 0;
  for (std::string word; words >> word;) {
    numbers.push_back(parse_integer(fmt::format("--counts file:{}:", path), word.substr(0, 40), 0,
                                    largest_count));
    if (numbers.back() > largest_count - sum)
      refuse("--counts file:{}: the sum does not fit in 63 bits", path);
    sum += numbers.back();
  }
  if (sum == 0) refuse("--counts file:{}: expected one number per rank, not all of them 0", path);
  return numbers;
}

}  // namespace

Counts Counts::parse(std::string_view text) {
  if (text == "even") return {};
  for (const Form& form : forms)
    if (form.name == text) return {text, form.weight};
  const std::size_t colon = text.find(':');
  const std::string_view form = text.substr(0, colon);
  const std::string_view rest =
      colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  if (form == "zipf") {
    const double exponent =
        parse_number("--counts zipf:A, its A", rest, "from 0 to 16, such as zipf:1",
                     [](double a) { return a >= 0 && a <= 16; });
    return {text, [exponent](int rank, int) {
              return std::llround(zipf_unit * std::pow(rank + 1, -exponent));
            }};
  }
  if (form == "file" && !rest.empty()) {
    return {text, [name = std::string(text), numbers = read_numbers(std::string(rest))](int rank,
                                                                                        int ranks) {
              if (std::ssize(numbers) != ranks)
                refuse("--counts {}: it has {} for {}; expected one per rank", name,
                       plural(std::ssize(numbers), "number"), plural(ranks, "rank"));
              return numbers[static_cast<std::size_t>(rank)];
            }};
  }
  refuse(
      "--counts '{}': expected even, last-short, one-empty, mild, linear, zipf:A, one-only or "
      "file:PATH",
      text);
}

RowLayout Counts::cut(std::int64_t total, int ranks) const {
  std::vector<std::int64_t> weights;
  for (int r = 0; r < ranks; ++r) weights.push_back(weight_ ? weight_(r, ranks) : 1);
  return cut_by_weights(total, weights);
}

RowLayout cut_by_weights(std::int64_t total, const std::vector<std::int64_t>& weights) {
  const std::int64_t whole = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
  // Rounds the end of each block, so that errors do not add up.
  std::vector<std::int64_t> blocks;
  std::int64_t passed = 0;
  std::int64_t begin = 0;
  for (const std::int64_t weight : weights) {
    passed += weight;
    const std::int64_t end = scaled(total, passed, whole);
    blocks.push_back(end - begin);
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
