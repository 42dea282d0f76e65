#include "bench/watch.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "bench/row_times.hpp"
#include "common/duration.hpp"

namespace tutti::tool {
namespace {

constexpr int table_columns = 80;

bool has_room(std::FILE* out, std::size_t lines) {
  winsize size{};
  return isatty(fileno(out)) != 0 && ioctl(fileno(out), TIOCGWINSZ, &size) == 0 &&
         size.ws_col >= table_columns && size.ws_row > lines;
}

}  // namespace

std::pair<std::size_t, Row> Windows::add(Row pass) {
  const auto found = std::ranges::find_if(windows_, [&](const Window& window) {
    const Row& row = window.rows.front();
    return row.key == pass.key && row.bytes == pass.bytes;
  });
  const auto number = static_cast<std::size_t>(found - windows_.begin());
  if (found == windows_.end()) windows_.emplace_back();
  Window& window = windows_[number];
  if (window.wrong.value_or(0) == 0) window.first_wrong = pass.first_wrong;
  if (pass.wrong) window.wrong = window.wrong.value_or(0) + *pass.wrong;
  window.rows.push_back(std::move(pass));
  if (window.rows.size() > passes) window.rows.pop_front();
  return {number, over(window)};
}

Row Windows::over(const Window& window) const {
  Row all = window.rows.back();
  const bool capped = all.has(Flag::capped_mem);
  const double factor = all.busbw && *all.algbw > 0 ? *all.busbw / *all.algbw : 0;
  all.flags.clear();
  all.wrong = window.wrong;
  all.first_wrong = window.first_wrong;
  std::vector<double> samples;
  std::vector<double> means(all.rank_mean_us.size());
  double n = 0;
  for (const Row& row : window.rows) n += static_cast<double>(row.time_us.n);
  if (all.overlap) all.overlap.emplace();
  for (const Row& row : window.rows) {
    const double share = static_cast<double>(row.time_us.n) / n;
    samples.insert(samples.end(), row.samples_us.begin(), row.samples_us.end());
    for (std::size_t r = 0; r < means.size(); ++r) means[r] += share * row.rank_mean_us[r];
    if (!row.overlap) continue;
    all.overlap->overall_us += share * row.overlap->overall_us;
    all.overlap->compute_us += share * row.overlap->compute_us;
    all.overlap->comm_us += share * row.overlap->comm_us;
  }
  all.samples_us.clear();
  set_times(all, std::move(samples), std::move(means), factor, timing_);
  if (capped) all.flags.push_back(Flag::capped_mem);
  return all;
}

LiveLines::LiveLines(std::FILE* out, std::size_t most_lines)
    : out_(out), overwrites_(has_room(out, most_lines)) {}

bool LiveLines::known(const std::string& name) const {
  return std::ranges::find(lines_, name) != lines_.end();
}

void LiveLines::heading(const std::string& name, const std::string& text) {
  if (name == last_heading_ || known(name)) return;
  last_heading_ = name;
  fmt::print(out_, "{}", text);
  std::fflush(out_);
  if (!overwrites_) return;
  lines_.push_back(name);
  lines_.resize(lines_.size() + static_cast<std::size_t>(std::ranges::count(text, '\n')) - 1);
}

void LiveLines::line(const std::string& name, std::string text) {
  const auto found = std::ranges::find(lines_, name);
  if (!overwrites_) {
    text.pop_back();
    fmt::print(out_, "{}  {:.1f} s\n", text, seconds(Clock::now() - start_));
  } else if (found == lines_.end()) {
    fmt::print(out_, "\r{}", text);
    lines_.push_back(name);
  } else {
    const auto up = lines_.end() - found;
    text.pop_back();
    fmt::print(out_, "\x1b[{0}A\r{1}\x1b[K\x1b[{0}B\r", up, text);
  }
  std::fflush(out_);
}

}  // namespace tutti::tool
