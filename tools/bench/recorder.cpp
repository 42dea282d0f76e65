#include "bench/recorder.hpp"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/duration.hpp"
#include "common/text.hpp"

namespace tutti::tool {

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
  if (table_) table_->begin(record_, plan_.blocks.front().key());
}

void Recorder::note(const std::string& text) {
  progress_.clear();
  record_.notes.push_back(text);
  if (!options_.quiet) fmt::print(err_, "note: {}\n", text);
}

void Recorder::begin_sweep(const Key& key) {
  first_of_sweep_ = record_.rows.size();
  progress_.clear();
  if (table_) table_->begin_sweep(key);
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
  const std::span<const Row> rows = std::span(record_.rows).subspan(first_of_sweep_);
  std::vector<Point> points;
  for (const Row& row : rows)
    points.push_back({static_cast<double>(row.bytes), row.percentiles_us.at(50)});
  const std::optional<Fit> fit = fit_line(points);
  if (fit) record_.fits.push_back({rows.front().key, *fit});
  progress_.clear();
  if (table_) table_->end_sweep(rows, fit);
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

}  // namespace tutti::tool
