#include "bench/recorder.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/duration.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

/// The settings that the rows of a sweep share.
Key key_of(std::span<const Block> sweep) {
  Key key = sweep.front().key();
  if (sweep.size() > 1) key.place.reset();
  return key;
}

}  // namespace

Recorder::Recorder(const BenchOptions& options, const Plan& plan, BenchRecord& record,
                   std::FILE* out, std::FILE* err)
    : options_(options),
      plan_(plan),
      record_(record),
      err_(err),
      progress_(err, !options.quiet, plan.rows()) {
  if (options.format == Format::table) table_.emplace(out, options, plan);
}

void Recorder::begin(World world) {
  record_.world = std::move(world);
  begun_ = true;
  if (table_) table_->begin(record_, key_of(plan_.sweeps(options_.joins_places()).front()));
}

void Recorder::note(const std::string& text) {
  progress_.clear();
  record_.notes.push_back(text);
  if (!options_.quiet) fmt::print(err_, "note: {}\n", text);
}

void Recorder::begin_sweep(std::span<const Block> sweep) {
  first_of_sweep_ = record_.rows.size();
  progress_.clear();
  if (table_) table_->begin_sweep(key_of(sweep), sweep.size() > 1);
}

void Recorder::before_row(const Block& block, std::int64_t bytes) {
  progress_.before_row(block.key(), bytes);
}

void Recorder::row(Row row) {
  progress_.clear();
  if (options_.verbose)
    fmt::print(err_, "{} {}: {} warm-up calls, {} iterations\n", title(row.key),
               format_bytes(row.bytes), row.warmup_calls, row.time_us.n);
  if (table_) table_->row(row);
  progress_.after_row(row);
  record_.rows.push_back(std::move(row));
}

void Recorder::end_sweep() {
  const std::span<Row> rows = std::span(record_.rows).subspan(first_of_sweep_);
  // The record has the rows of one place after those of the other.
  std::ranges::stable_sort(rows, {}, [](const Row& row) { return row.key.place; });
  const std::size_t first_fit = record_.fits.size();
  add_fits(rows);
  progress_.clear();
  if (table_) table_->end_sweep(rows, std::span(record_.fits).subspan(first_fit));
}

void Recorder::end_early(bool interrupted, std::int64_t measured, const Plan& part) {
  end_sweep();
  const std::string why =
      interrupted ? "interrupted"
                  : fmt::format("--max-total {} is over", format_duration(options_.max_total));
  note(fmt::format("{}: {} of {} rows were not measured", why, part.rows() - measured,
                   plan_.rows()));
}

void Recorder::links(Links measured) {
  if (options_.links) record_.links = std::move(measured.links);
  record_.slow = std::move(measured.slow);
}

void Recorder::end() {
  progress_.clear();
  if (table_ && begun_) table_->end(record_);
}

/// Fits a line to the rows of each sweep.
void Recorder::add_fits(std::span<const Row> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && rows[i].key == rows[i - 1].key) continue;
    std::vector<Point> points;
    for (const Row& row : rows.subspan(i))
      if (row.key == rows[i].key)
        points.push_back({static_cast<double>(row.bytes), row.percentiles_us.at(50)});
    if (const auto fit = fit_line(points)) record_.fits.push_back({rows[i].key, *fit});
  }
}

}  // namespace tutti::tool
