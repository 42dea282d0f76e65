#include <tutti/row_layout.hpp>

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "group/call.hpp"
#include "values/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {

RowLayout::RowLayout(std::span<const std::int64_t> counts) try
    : counts_(counts.begin(), counts.end()) {
  ends_.reserve(counts.size());
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] < 0)
      internal::failf(Errc::invalid_argument, "rank {} has {} rows; the number must be 0 or more",
                      r, counts[r]);
    std::int64_t sum = 0;
    if (__builtin_add_overflow(total(), counts[r], &sum))
      internal::failf(Errc::count_overflow,
                      "{} rows of ranks 0 to {} and {} of rank {} exceed 2^63 - 1", total(), r - 1,
                      counts[r], r);
    ends_.push_back(sum);
    max_ = std::max(max_, counts[r]);
  }
} catch (...) {
  internal::end_calls(nullptr);
}

RowLayout RowLayout::equal(int ranks, std::int64_t rows_of_each) try {
  return RowLayout(
      std::vector<std::int64_t>(static_cast<std::size_t>(std::max(ranks, 0)), rows_of_each));
} catch (...) {
  internal::end_calls(nullptr);
}

bool RowLayout::is_equal() const noexcept {
  return std::ranges::all_of(counts_, [this](std::int64_t rows) { return rows == max_; });
}

std::string to_string(const RowLayout& rows) {
  constexpr std::size_t shown = 8;
  const auto counts = rows.counts();
  return fmt::format("{{{}{}}}", fmt::join(counts.first(std::min(shown, counts.size())), ", "),
                     counts.size() > shown ? ", ..." : "");
}

RowLayout exchange_rows(ProcessGroup& group, std::int64_t rows, const CallOptions& options) try {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), rows);
  const auto own = std::span(counts).subspan(static_cast<std::size_t>(group.rank()), 1);
  internal::host_call(group, {.kind = Operation::all_gather, .in = own, .out = counts, .rows = 1},
                      options);
  return RowLayout(counts);
} catch (...) {
  internal::end_calls(group);
}

}  // namespace tutti
