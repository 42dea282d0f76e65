#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <tutti/version.hpp>

#include "bench/bench.hpp"
#include "common/exit_code.hpp"
#include "common/option.hpp"
#include "common/text.hpp"
#include "inspect/inspect.hpp"
#include "run/launcher.hpp"
#include "step/step.hpp"

namespace tutti::tool {
namespace {

constexpr std::array<std::string_view, 6> subcommands{"run",      "bench",  "info",
                                                      "diagnose", "doctor", "schema"};
/// Those of the Python program tutti-report, and their help.
constexpr std::array<std::pair<const char*, const char*>, 3> of_report{
    {{"compare", "which rows of a saved run are faster or slower than those of another"},
     {"check", "rules that the rows of a saved run must fulfil"},
     {"report", "a picture of saved runs"}}};

/// Becomes tutti-report, as git becomes git-NAME. @throws Failure usage if it is not there.
[[noreturn]] void start_report(char** argv) {
  std::string program = "tutti-report";
  const std::string name = argv[1];
  argv[0] = program.data();
  execvp(argv[0], argv);
  refuse(
      "{}: {} cannot be started: {}; it is installed with this program and with the Python package "
      "tutti, and needs numpy, scipy and matplotlib",
      name, program, std::generic_category().message(errno));
}

/// Refuses an unknown subcommand with a list of all subcommands, which CLI11's own error lacks.
void check_subcommand(const std::vector<std::string>& argv) {
  std::vector<std::string_view> all(subcommands.begin(), subcommands.end());
  for (const auto& each : of_report) all.emplace_back(each.first);
  const std::string present = fmt::format("{}", fmt::join(all, ", "));
  if (argv.size() < 2) refuse("no subcommand; there are: {} (see tutti --help)", present);
  const std::string& name = argv[1];
  for (const char* option : {"-h", "--help", "--version"})
    if (name == option) return;
  if (name.starts_with('-')) refuse("unknown option '{}' (see tutti --help)", name);
  if (std::ranges::find(all, name) == all.end())
    refuse("unknown subcommand '{}'; there are: {}", name, present);
}

Exit print(std::string_view text) {
  fmt::print("{}", text);
  flush(stdout);
  return Exit::ok;
}

/// Defines the options in CLI11.
void define(CLI::App& app, const OptionList& options) {
  for (const Option& option : options) {
    const std::string names(option.names);
    const std::string help(option.help);
    CLI::Option* added = std::visit(
        [&]<typename T>(const T& value) -> CLI::Option* {
          if constexpr (std::is_same_v<T, bool*>)
            return app.add_flag(names, *value, help);
          else if constexpr (std::is_pointer_v<T>)
            return app.add_option(names, *value, help);
          else
            return app.add_option_function<std::string>(
                names,
                [value, name = names.substr(names.rfind(',') + 1)](const std::string& text) {
                  value(name, text);
                },
                help);
        },
        option.value);
    if (!option.type.empty()) added->type_name(std::string(option.type));
    if (!option.group.empty()) added->group(std::string(option.group));
    const bool list = std::holds_alternative<std::vector<std::string>*>(option.value);
    if (list && names.starts_with("-"))
      added->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
}

/// "; did you mean --warmup?" for "--warm-up"; empty if no option of `app` is alike.
std::string hint(const CLI::App& app, std::string_view unknown) {
  const auto letters = [](std::string_view name) {
    std::string bare(name);
    std::erase_if(bare, [](char letter) { return letter == '-' || letter == '_'; });
    return bare;
  };
  const auto wanted = letters(unknown.substr(0, unknown.find('=')));
  if (wanted == "minbytes" || wanted == "maxbytes")  // Of nccl-tests.
    return "; did you mean --sizes MIN:MAX, such as 8:1G?";
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames())
      if (letters(name) == wanted) return fmt::format("; did you mean --{}?", name);
  return {};
}

Exit run(int argc, char** argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  check_subcommand(arguments);
  for (const auto& each : of_report)
    if (arguments[1] == each.first) start_report(argv);

  CLI::App app("Collective operations: measure the wire, see what is built.", "tutti");
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("tutti {}", library_version_string()));

  CLI::App* ranks = app.add_subcommand("run", "start N ranks of a program");
  LaunchOptions to_launch{.ranks = 0, .node = -1};
  std::string program;
  define(*ranks, run_options(to_launch, program));

  CLI::App* bench = app.add_subcommand("bench", "measure collectives; every result is checked");
  BenchOptions bench_to_run;
  define(*bench, bench_options(bench_to_run));
  // No fallthrough: options before it belong to `bench`, which has other options.
  CLI::App* step = bench->add_subcommand("step", "steps of a GradientReducer against bucket size");
  StepOptions step_to_run;
  define(*step, step_options(step_to_run));

  for (const auto& [name, help] : of_report) app.add_subcommand(name, help);

  bool json = false;
  const Option json_option{"-f,--format",
                           [&json](std::string_view option, const std::string& text) {
                             constexpr Names<2> formats{"text", "json"};
                             json = parse_choice(option, text, formats) == 1;
                           },
                           "text or json", "FORMAT"};
  CLI::App* info = app.add_subcommand("info", "versions, backends, and what auto would pick");
  define(*info, {json_option});

  CLI::App* diagnosis =
      app.add_subcommand("diagnose", "what the trace files of TUTTI_TRACE_DIR say about a run");
  std::string directory;
  define(*diagnosis,
         {{"directory", &directory, "the directory of TUTTI_TRACE_DIR", "DIR"}, json_option});

  CLI::App* doctor =
      app.add_subcommand("doctor", "what keeps this machine, or a launcher's ranks, from running");
  DoctorOptions doctor_options;
  define(*doctor, {{"--backend", &doctor_options.backend, "of the launcher's ranks (auto)", "NAME"},
                   {"--timeout", to_timeout(doctor_options.timeout),
                    "how long the ranks wait for each other (60s)", "TIME"},
                   json_option});

  CLI::App* schema = app.add_subcommand("schema", "the JSON Schema of what a command prints");
  std::string schema_of = "bench";
  define(*schema, {{"command", &schema_of, "bench or step (bench)", "COMMAND"}});

  const bool runs = arguments[1] == "run";
  try {
    // Arguments after the program to run belong to that program.
    app.parse(runs ? static_cast<int>(own_arguments(arguments)) : argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    app.exit(success);
    return Exit::ok;
  } catch (const CLI::ParseError& error) {
    const std::string name = arguments[1].starts_with('-') ? "" : " " + arguments[1];
    std::string text = error.what();
    for (const CLI::App* command : app.get_subcommands())
      for (const std::string& unknown : command->remaining()) text += hint(*command, unknown);
    refuse("{} (see tutti{} --help)", text, name);
  }

  if (runs) {
    check_run(to_launch, arguments);
    return static_cast<Exit>(launch(to_launch));
  }
  if (app.got_subcommand(schema)) {
    constexpr Names<2> commands{"bench", "step"};
    constexpr std::array schemas{bench_schema, step_schema};
    return print(schemas[parse_choice("schema", schema_of, commands)]());
  }
  if (app.got_subcommand(diagnosis)) {
    if (directory.empty()) refuse("diagnose: no directory; name that of TUTTI_TRACE_DIR");
    return run_diagnose(directory, json);
  }
  if (app.got_subcommand(doctor)) {
    doctor_options.json = json;
    return run_doctor(doctor_options);
  }
  if (app.got_subcommand(info)) return print(json ? info_json() : info_text());
  if (bench->got_subcommand(step)) {
    if (arguments[2] != "step")
      refuse("'step' must come directly after 'bench': tutti bench step [options]");
    step_to_run.argv = arguments;
    check_step(step_to_run);
    return run_step(step_to_run, stdout, stderr);
  }
  if (bench_to_run.help_sizes) return print(sizes_help());
  bench_to_run.argv = arguments;
  bench_to_run.handles_signals = true;
  check_bench(bench_to_run);
  return run_bench(bench_to_run, stdout, stderr);
}

}  // namespace
}  // namespace tutti::tool

int main(int argc, char** argv) {
  using namespace tutti::tool;
  Exit code = Exit::internal;
  try {
    code = run(argc, argv);
  } catch (const Failure& failure) {
    fmt::print(stderr, "error: {}\n", failure.what());
    code = failure.code();
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: internal: {}\n", error.what());
  }
  return static_cast<int>(code);
}
