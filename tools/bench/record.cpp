#include "bench/record.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace tutti::tool {

std::string_view name_of(Flag flag) noexcept {
  switch (flag) {
    case Flag::few_samples:
      return "few_samples";
    case Flag::noisy:
      return "noisy";
    case Flag::slow_first:
      return "slow_first";
    case Flag::capped_mem:
      break;
  }
  return "capped_mem";
}

bool Row::has(Flag flag) const noexcept {
  return std::find(flags.begin(), flags.end(), flag) != flags.end();
}

std::string title(const Key& key) {
  std::string text = key.coll;
  if (key.dtype) text += fmt::format("  {}", tutti::name_of(*key.dtype));
  if (key.op) text += fmt::format(" {}", tutti::name_of(*key.op));
  if (key.place) text += *key.place == Place::out ? "  out-of-place" : "  in-place";
  if (key.root) text += fmt::format("  root {}", *key.root);
  if (!key.counts.empty() && key.counts != "even") text += fmt::format("  counts {}", key.counts);
  return text;
}

std::string describe_wrong(const Row& row) {
  const std::int64_t wrong = row.wrong.value_or(0);
  std::string text = fmt::format("{} wrong element{}", wrong, wrong == 1 ? "" : "s");
  if (row.first_wrong)
    text += fmt::format(", first: rank {} {}[{}] expected {} got {}", row.first_wrong->rank,
                        row.first_wrong->array, row.first_wrong->index, row.first_wrong->expected,
                        row.first_wrong->got);
  return text;
}

}  // namespace tutti::tool
