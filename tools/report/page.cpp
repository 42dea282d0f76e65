#include "report/page.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/atomic_file.hpp"
#include "common/text.hpp"
#include "report/run_figures.hpp"

namespace tutti::tool {
namespace {

constexpr std::size_t most_runs = 6;

constexpr std::string_view page_style = R"(:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;max-width:1320px;margin:0 auto;padding:12px 16px;color:#222;background:#fff}
h1{font-size:22px}h2{font-size:18px;margin:32px 0 8px}li,h2{overflow-wrap:anywhere}
.figures{display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start}
.figures>div,.table{overflow-x:auto;max-width:100%}
.figures svg{display:block;border:1px solid #ddd}
.plot svg{max-width:100%;min-width:460px;height:auto}
table{border-collapse:collapse;margin:12px 0;font-size:13px;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid #ddd;padding:3px 10px;text-align:right;white-space:nowrap}
th{font-weight:600;vertical-align:bottom}
.settings td,.settings th,.left{text-align:left}
.settings td{white-space:normal;overflow-wrap:anywhere;max-width:60ch;min-width:12ch}
.bad{font-weight:bold;color:#b00020}
@media screen and (prefers-color-scheme:dark){body{color:#e4e4e4;background:#101215}
th,td,.figures svg{border-color:#3a3d42}.bad{color:#ff8080}a{color:#8ab4f8}}
@media print{body{max-width:none;padding:0;font-size:11px}.figures>div,tr{break-inside:avoid}h2{break-after:avoid}
.figures svg{max-width:100%;height:auto}}
)";

std::string cell(std::string_view tag, std::string_view text, std::string_view kind = {}) {
  return fmt::format("<{0}{1}{2}>{3}</{0}>", tag, kind.empty() ? "" : " class=", kind,
                     escaped(text));
}

using Setting = std::pair<std::string, std::string>;

std::vector<Setting> shown_settings(const SavedRun& run) {
  const World& world = run.world;
  const auto word = [](bool value) { return std::string(value ? "yes" : "no"); };
  const auto started = std::chrono::system_clock::to_time_t(run.started);
  std::string status(name_of(run.status));
  if (!run.error.empty()) status += ": " + run.error;
  std::vector<Setting> settings{
      {"file", run.file},
      {"started", fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(started))},
      {"duration", fmt::format("{:.1f} s", run.duration_s)},
      {"status", status},
      {"tutti", fmt::format("{} ({}), {}", run.version, run.git, run.build)},
      {"backend", fmt::format("{} {}", run.backend.name, run.backend.version)},
      {"chosen because", run.backend.chosen_because},
      {"transport", run.backend.transport},
      {"ranks", fmt::format("{} on {}", world.size, plural(world.hosts, "host"))},
      {"ranks are threads", word(world.threads)},
      {"CPUs", fmt::format("{}{}", world.cpus, world.oversubscribed ? ", fewer than ranks" : "")}};
  if (!world.ranks.empty()) settings.emplace_back("processor", world.ranks.front().model);
  settings.emplace_back("command", fmt::format("{}", fmt::join(run.argv, " ")));
  for (const auto& [name, value] : run.config) settings.emplace_back("config " + name, value);
  for (const auto& [name, value] : run.env) settings.emplace_back(name, value);
  settings.emplace_back("notes", fmt::format("{}", fmt::join(run.notes, "; ")));
  return settings;
}

/// A table of what differs between the runs, and one of what is the same.
std::string settings_tables(std::span<const SavedRun> runs) {
  std::vector<std::string> names;  // In the order of the first run that has it.
  std::vector<std::vector<Setting>> settings;
  for (const SavedRun& run : runs) {
    settings.push_back(shown_settings(run));
    for (const Setting& setting : settings.back())
      if (std::ranges::find(names, setting.first) == names.end()) names.push_back(setting.first);
  }
  std::string different;
  std::string same;
  for (const std::string& name : names) {
    std::vector<std::string> values;
    for (const std::vector<Setting>& of_run : settings) {
      const auto found = std::ranges::find(of_run, name, &Setting::first);
      values.push_back(found == of_run.end() ? std::string() : found->second);
    }
    const bool all_same = std::ranges::count(values, values.front()) == std::ssize(values);
    if (all_same && values.front().empty()) continue;
    if (all_same) values.resize(1);
    std::string& table = all_same ? same : different;
    table += "<tr>" + cell("th", name);
    for (const std::string& value : values) table += cell("td", value.empty() ? "-" : value);
    table += "</tr>\n";
  }
  std::string text;
  if (!different.empty()) {
    text += "<h2>Differences</h2>\n<div class=table><table class=settings>\n<tr><th></th>";
    for (const std::string& name : names_of_runs(runs)) text += cell("th", name);
    text += "</tr>\n" + different + "</table></div>\n";
  }
  return text +
         fmt::format("<h2>{}</h2>\n<div class=table><table class=settings>\n{}</table></div>\n",
                     runs.size() == 1 ? "Settings" : "Equal in all runs", same);
}

std::string rows_table(const Sweep& sweep) {
  std::vector<std::pair<const SavedRow*, const Curve*>> rows;
  for (const Curve& curve : sweep.curves)
    for (const SavedRow& row : curve.rows) rows.emplace_back(&row, &curve);
  std::ranges::stable_sort(rows, {}, [](const auto& row) { return row.first->bytes; });
  std::string text = "<div class=table><table>\n<tr><th>size</th><th class=left>line</th>";
  for (const char* name :
       {"p50 µs", "p99 µs", "max µs", "algbw GB/s", "busbw GB/s", "check", "iterations"})
    text += cell("th", name);
  text += "<th class=left>flags</th></tr>\n";
  for (const auto& [row, curve] : rows) {
    const std::int64_t wrong = row->wrong.value_or(0);
    text += "<tr>" + cell("td", size_text(*row)) + cell("td", curve->name, "left");
    for (const double us : {row->time_us.p50, row->percentiles_us.at(99), row->time_us.max})
      text += cell("td", format_us(us));
    text += cell("td", format_gbps(row->algbw)) + cell("td", format_gbps(row->busbw));
    text += !row->wrong  ? cell("td", "-")
            : wrong == 0 ? cell("td", "ok")
                         : cell("td", fmt::format("{} wrong", wrong), "bad");
    text += cell("td", fmt::format("{}", row->time_us.n));
    text += cell("td", fmt::format("{}", fmt::join(row->flags, " ")), "left") + "</tr>\n";
  }
  return text + "</table></div>\n";
}

std::string section(const Sweep& sweep, std::size_t number) {
  std::string text =
      fmt::format("<h2 id=s{}>{}</h2>\n<div class=figures>\n", number, escaped(sweep.title));
  const auto add = [&text](std::string_view kind, const Svg& figure) {
    text += fmt::format("<div class={}>{}</div>\n", kind, figure.element());
  };
  for (const Plot& plot : size_plots(sweep)) add("plot", draw("", {plot}));
  if (const std::optional<Plot> samples = sample_plot(sweep)) add("plot", draw("", {*samples}));
  for (const Curve& curve : sweep.curves)
    if (const std::optional<HeatMap> map = rank_map(curve)) add("map", draw(*map));
  return text + "</div>\n" + rows_table(sweep);
}

}  // namespace

std::string page_of(std::span<const SavedRun> runs) {
  const std::vector<Sweep> sweeps = sweeps_of(runs);
  std::string heads;
  std::string links;
  std::string sections;
  const std::vector<std::string> names = names_of_runs(runs);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const SavedRun& run = runs[i];
    std::string head = fmt::format("{}: {}", names[i], describe_world(run));
    if (!run.file.empty()) head += ", " + run.file;
    if (run.status != Status::ok) head += fmt::format(", {} {}", name_of(run.status), run.error);
    heads += cell("li", head, run.status == Status::ok ? "" : "bad");
  }
  for (const Sweep& sweep : sweeps) {
    const std::size_t number =
        sections.empty() ? 0 : static_cast<std::size_t>(&sweep - sweeps.data());
    links += fmt::format("<li><a href=#s{}>{}</a></li>\n", number, escaped(sweep.title));
    sections += section(sweep, number);
  }
  if (sweeps.size() > 1) links = "<ul>\n" + links + "</ul>\n";
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
      "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<meta name=viewport content=\"width=device-width\">\n<title>tutti "
      "report</title>\n<style>\n{}{}</style>\n"
      "</head>\n<body>\n<h1>tutti bench</h1>\n<ul>\n{}</ul>\n"
      "<p>A line is the p50 of the iterations, its band reaches to p99. The bandwidth in tables is "
      "of the mean "
      "time. 1 GB/s = 10<sup>9</sup> B/s.</p>\n{}{}{}</body>\n</html>\n",
      page_style, figure_style(), heads, sweeps.size() > 1 ? links : "", sections,
      settings_tables(runs));
}

OptionList ReportCommand::options() {
  return {{"files", &files, "JSON files of tutti bench --out, up to 6", "FILE"},
          {"-o,--out", &out, "the page or the picture: .html or .svg", "FILE"}};
}

Exit ReportCommand::run() const {
  if (files.empty()) refuse("report: no file; name the JSON files of tutti bench --out FILE.json");
  if (files.size() > most_runs)
    refuse("report: {} files; give at most {}", files.size(), most_runs);
  const bool picture = out.ends_with(".svg");
  if (!picture && !out.ends_with(".html"))
    refuse("report -o '{}': its name must end in .html or .svg", out);
  std::vector<SavedRun> runs;
  for (const std::string& file : files) runs.push_back(read_saved_run(file));
  AtomicFile(out).commit(picture ? svg_of(runs) : page_of(runs));
  return Exit::ok;
}

}  // namespace tutti::tool
