#include "bench/sizes.hpp"

#include <array>
#include <charconv>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "common/exit_code.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t most_sizes = 1000;

struct Suffix {
  std::string_view name;
  std::int64_t factor;
};
constexpr std::array<Suffix, 15> suffixes{{{"", 1},
                                           {"B", 1},
                                           {"e", 1},
                                           {"K", 1LL << 10},
                                           {"M", 1LL << 20},
                                           {"G", 1LL << 30},
                                           {"T", 1LL << 40},
                                           {"KiB", 1LL << 10},
                                           {"MiB", 1LL << 20},
                                           {"GiB", 1LL << 30},
                                           {"TiB", 1LL << 40},
                                           {"KB", 1'000},
                                           {"MB", 1'000'000},
                                           {"GB", 1'000'000'000},
                                           {"TB", 1'000'000'000'000}}};

/// " of '1K:4K'" if the token is only a part of the user's text.
std::string within(std::string_view token, std::string_view item) {
  return token == item ? std::string() : fmt::format(" in '{}'", item);
}

Size parse_one(std::string_view token, std::string_view item) {
  std::int64_t number = 0;
  const char* end = token.data() + token.size();
  const auto [stop, problem] = std::from_chars(token.data(), end, number);
  if (problem == std::errc::result_out_of_range)
    refuse("size '{}'{}: does not fit in 63 bits", token, within(token, item));
  if (problem != std::errc())
    refuse("size '{}'{}: expected a whole number with an optional suffix, such as 4K", token,
           within(token, item));
  const std::string_view suffix(stop, static_cast<std::size_t>(end - stop));
  for (const Suffix& known : suffixes) {
    if (known.name != suffix) continue;
    if (number <= 0) refuse("size '{}'{}: must be above 0", token, within(token, item));
    if (number > largest / known.factor)
      refuse("size '{}'{}: does not fit in 63 bits", token, within(token, item));
    return {number * known.factor, suffix == "e", std::string(token), false};
  }
  refuse(
      "size '{}'{}: unknown suffix '{}'; known: B, K M G T and KiB MiB GiB TiB (1024), "
      "KB MB GB TB (1000), e (elements)",
      token, within(token, item), suffix);
}

/// The step of a range: times `factor`, or plus `add`.
struct Step {
  std::int64_t factor = 2;
  std::int64_t add = 0;
};

Step parse_step(std::string_view token, std::string_view item, bool elements) {
  if (token.starts_with('x')) {
    std::int64_t factor = 0;
    const char* end = token.data() + token.size();
    const auto [stop, problem] = std::from_chars(token.data() + 1, end, factor);
    if (problem == std::errc() && stop == end && factor >= 2) return {factor, 0};
  } else if (token.starts_with('+')) {
    const Size add = parse_one(token.substr(1), item);
    if (add.elements != elements)
      refuse("size step '{}' in '{}': bytes and elements are mixed; use one of them", token, item);
    return {0, add.value};
  }
  refuse("size step '{}' in '{}': expected xN with N of at least 2, or +SIZE", token, item);
}

void parse_range(std::string_view item, std::vector<Size>& sizes) {
  const std::size_t first_colon = item.find(':');
  const std::size_t second_colon = item.find(':', first_colon + 1);
  const Size low = parse_one(item.substr(0, first_colon), item);
  const Size high = parse_one(item.substr(first_colon + 1, second_colon - first_colon - 1), item);
  if (low.elements != high.elements)
    refuse("size range '{}': bytes and elements are mixed; use one of them", item);
  if (low.value > high.value)
    refuse("size range '{}': the minimum {} is above the maximum {}", item, low.token, high.token);
  Step step;
  if (second_colon != std::string_view::npos)
    step = parse_step(item.substr(second_colon + 1), item, low.elements);
  for (std::int64_t value = low.value;;) {
    if (sizes.size() == most_sizes)
      refuse("size range '{}': more than {} sizes; use a larger step", item, most_sizes);
    sizes.push_back({value, low.elements, std::string(item), true});
    const bool ends =
        step.add != 0 ? value > high.value - step.add : value > high.value / step.factor;
    if (ends) return;
    value = step.add != 0 ? value + step.add : value * step.factor;
  }
}

}  // namespace

std::vector<Size> parse_sizes(std::string_view spec) {
  std::vector<Size> sizes;
  for (const std::string_view item : split_list("sizes", spec)) {
    if (item.find(':') == std::string_view::npos)
      sizes.push_back(parse_one(item, item));
    else
      parse_range(item, sizes);
  }
  return sizes;
}

std::int64_t bytes_of(const Size& size, DType dtype) {
  if (!size.elements) return size.value;
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  if (size.value > largest / width)
    refuse("size '{}': {} elements of {} do not fit in 63 bits", size.token, size.value,
           name_of(dtype));
  return size.value * width;
}

const std::string_view size_syntax =
    R"(Sizes (-s, --sizes): items separated by commas, each a size or a range.
  4K            one size; K M G T and KiB MiB GiB TiB are powers of 1024,
                KB MB GB TB of 1000, B or nothing is bytes
  100e          100 elements of the dtype
  8:1G          8, 16, 32, ... up to 1G
  1K:64M:x4     times 4
  1M:16M:+1M    plus 1M
)";

}  // namespace tutti::tool
