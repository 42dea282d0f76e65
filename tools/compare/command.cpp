#include "compare/command.hpp"

#include <array>

#include <fmt/format.h>

#include "common/duration.hpp"
#include "common/text.hpp"
#include "compare/gates.hpp"
#include "compare/rounds.hpp"
#include "report/comparison.hpp"
#include "report/saved_run.hpp"

namespace tutti::tool {
namespace {

/// Fields of the comparison in every row of CSV and NDJSON.
constexpr std::array<std::string_view, 4> shared_fields{"old", "new", "threshold", "unit"};

void print_gate(std::FILE* out, const Gate& gate) {
  fmt::print(out, "{}  {}  ({})\n", gate.pass ? "PASS" : "FAIL", gate.rule, gate.found);
}

}  // namespace

OptionList CompareCommand::options() {
  return {
      {"old", &old_, "file of bench --out, FILE,FILE,... or a directory; with --run a command",
       "OLD"},
      {"new", &new_, "the same, for NEW", "NEW"},
      {"--run", &run_, "OLD and NEW are commands (tutti bench ...): run them in turn"},
      {"--threshold", &threshold_, "smaller differences do not count (5%)", "PERCENT"},
      {"--strict", &strict_, "rows that are too noisy or only in OLD fail, too"},
      {"--rounds", &rounds_, "with --run: auto or a number", "N"},
      {"--max-total", &max_total_, "with --run and without --rounds: no round ends later (60s)",
       "TIME"},
      {"-f,--format", &output_texts_.format, "of stdout: table, json, ndjson, csv or md", "FORMAT"},
      {"--out", &output_texts_.files,
       "also write this, by its ending: .json .ndjson .csv .md; may be\nrepeated", "FILE"}};
}

Exit CompareCommand::run(std::FILE* out, std::FILE* err) const {
  OutputOptions output;
  output_texts_.parse(output, {});
  if (old_.empty() || new_.empty())
    refuse(
        "compare: expected OLD and NEW: files of tutti bench --out FILE.json, or --run and two "
        "commands");
  const double threshold = parse_percent("--threshold", threshold_);
  RoundsOptions rounds{old_, new_, parse_count("--rounds", rounds_, 1),
                       parse_timeout("--max-total", max_total_)};
  if (!run_ && rounds.rounds) refuse("--rounds {}: needs --run and two commands", rounds_);
  check_files(output);

  Comparison comparison;
  if (run_) {
    const Rounds runs = run_rounds(rounds, err);
    comparison = compare(runs.old_runs, runs.new_runs, threshold, true);
  } else {
    comparison = compare(read_saved_runs(old_), read_saved_runs(new_), threshold, false);
  }
  comparison.old_name = old_;
  comparison.new_name = new_;
  write(output,
        {[&] { return Fields::object(comparison); }, shared_fields,
         [&] { return comparison_table(comparison); },
         [&] { return comparison_markdown(comparison); }},
        out);
  return exit_of(comparison, strict_);
}

OptionList CheckCommand::options() {
  return {{"runs", &files_, "file of bench --out, FILE,FILE,... or a directory", "RUN"},
          {"--require", &rules_,
           "'ROWS : METRIC OP VALUE', such as 'all_reduce f32 >=64M : busbw >= 180';\nmay be "
           "repeated",
           "RULE"},
          {"--baseline", &baseline_, "no row may be slower than in these files", "OLD"},
          {"--tolerance", &tolerance_, "by this or more (5%)", "PERCENT"}};
}

Exit CheckCommand::run(std::FILE* out) const {
  if (files_.empty()) refuse("check: no run; name a file of tutti bench --out FILE.json");
  if (rules_.empty() && baseline_.empty())
    refuse("check {}: nothing to check; add --require RULE or --baseline OLD", files_);
  const double tolerance = parse_percent("--tolerance", tolerance_);
  const std::vector<SavedRun> runs = read_saved_runs(files_);
  std::vector<Gate> gates;
  for (const SavedRun& run : runs)
    if (run.status != Status::ok)
      gates.push_back({run.file, false, fmt::format("status {}", name_of(run.status))});
  for (const std::string& rule : rules_) gates.push_back(check_rule(rule, runs));
  if (!baseline_.empty()) {
    Comparison comparison = compare(read_saved_runs(baseline_), runs, tolerance, false);
    comparison.old_name = baseline_;
    comparison.new_name = files_;
    fmt::print(out, "{}\n", comparison_table(comparison));
    gates.push_back({fmt::format("--baseline {}", baseline_),
                     exit_of(comparison, false) == Exit::ok && comparison.only_old.empty(),
                     comparison_summary(comparison)});
  }
  bool pass = true;
  for (const Gate& gate : gates) {
    print_gate(out, gate);
    pass = pass && gate.pass;
  }
  flush(out);
  return pass ? Exit::ok : Exit::gate;
}

}  // namespace tutti::tool
