#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/App.hpp>

#include <tutti/backend/backend_table.hpp>
#include <tutti/version.hpp>

#include "bench/bench.hpp"
#include "command_line.hpp"
#include "common/exit_code.hpp"
#include "common/text.hpp"
#include "inspect/inspect.hpp"
#include "run/launcher.hpp"
#include "step/step.hpp"

namespace tutti::tool {
namespace {

constexpr Subcommand tutti_itself{
    "tutti", "SUBCOMMAND [OPTIONS]",
    "Collective operations for N ranks: start the ranks, measure the collectives, find faults.",
    "tutti run -n 4 ./program\ntutti bench all -n 4\ntutti help bench\n"};
constexpr Subcommand run_ranks{
    "run", "-n N [OPTIONS] [--] PROGRAM [ARGUMENTS]", "start N ranks of a program",
    "tutti run -n 4 ./program --its-option\n"
    "tutti run -n 8 --nnodes 2 --node-rank 0 --rendezvous node0:29400 ./program\n"};
constexpr Subcommand bench_collectives{
    "bench", "[COLL[,COLL...]] [OPTIONS]", "measure collectives and check every result",
    "tutti bench -n 4\n"
    "tutti bench all -n 2 --sizes 1K:64M:x4 --out run.json\n"
    "tutti bench all_gather,reduce_scatter -n 4 --dtype bf16 --backend shm --min-time 0.1s\n"};
constexpr Subcommand bench_steps{"bench step", "[OPTIONS]",
                                 "measure steps of a GradientReducer against bucket size",
                                 "tutti bench step -n 2 --bucket 1M,5M,25M,100M --rounds 7\n"};
constexpr Subcommand compare{"compare", "OLD NEW [OPTIONS]",
                             "say which rows of saved runs are faster or slower",
                             "tutti compare old.json new.json --threshold 10%\n"
                             "tutti compare --run 'old/tutti bench -n 2' 'new/tutti bench -n 2'\n",
                             true};
constexpr Subcommand check{"check", "RUN [OPTIONS]", "check rules for the rows of a saved run",
                           "tutti check run.json --require '* : wrong == 0'\n", true};
constexpr Subcommand report{"report", "FILE... -o PICTURE", "draw a picture of saved runs",
                            "tutti report local.json shm.json -o backends.svg\n", true};
constexpr Subcommand info_of_build{
    "info", "[OPTIONS]", "print versions, backends, and what auto would pick", "tutti info\n"};
constexpr Subcommand diagnose{"diagnose", "DIR [OPTIONS]",
                              "read the trace files of TUTTI_TRACE_DIR and say what is wrong",
                              "tutti diagnose traces\n"};
constexpr Subcommand examine{"doctor", "[OPTIONS]",
                             "find what keeps this machine, or a launcher's ranks, from running",
                             "tutti doctor\ntutti run -n 4 tutti doctor\n"};
constexpr Subcommand print_schema{"schema", "[COMMAND]",
                                  "print the JSON Schema of what a command prints",
                                  "tutti schema bench\n"};
constexpr Subcommand print_help{"help", "[SUBCOMMAND]", "print the help of a subcommand",
                                "tutti help bench step\n"};

/// Becomes the tutti-report beside this program or beside the name by which it was started, else
/// that in PATH, as git becomes git-NAME. @throws Failure usage if there is none.
[[noreturn]] void start_report(std::vector<std::string> arguments) {
  const std::string name = arguments[1];
  std::error_code ignored;  // Without /proc the path is empty.
  const std::array started_as{std::filesystem::read_symlink("/proc/self/exe", ignored),
                              std::filesystem::path(arguments[0])};
  arguments[0] = "tutti-report";
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  for (const auto& path : started_as)
    if (path.has_parent_path()) execv((path.parent_path() / argv[0]).c_str(), argv.data());
  execvp(argv[0], argv.data());
  refuse(
      "{}: {} cannot be started: {}; it is installed with this program and with the Python package "
      "tutti, and needs numpy, scipy and matplotlib",
      name, arguments[0], std::generic_category().message(errno));
}

/// "run, bench, info": the subcommands of `app`.
std::string names_in(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Null if there is none.
const CLI::App* find_subcommand(const CLI::App& app, std::string_view name) {
  const auto found =
      app.get_subcommands([&](const CLI::App* each) { return each->get_name() == name; });
  return found.empty() ? nullptr : found.front();
}

/// Refuses an unknown subcommand with a list of all subcommands, which CLI11's own error lacks.
void check_subcommand(const CLI::App& app, const std::vector<std::string>& argv) {
  if (argv.size() < 2) refuse("no subcommand; there are: {} (see tutti --help)", names_in(app));
  const std::string& name = argv[1];
  for (const char* option : {"-h", "--help", "--version"})
    if (name == option) return;
  if (name.starts_with('-')) refuse("unknown option '{}' (see tutti --help)", name);
  if (find_subcommand(app, name) == nullptr)
    refuse("unknown subcommand '{}'; there are: {}", name, names_in(app));
}

/// "tutti bench --help" for "tutti help bench".
std::vector<std::string> help_arguments(const CLI::App& app, std::vector<std::string> argv) {
  if (argv.size() == 3 && (argv[2] == "-h" || argv[2] == "--help")) return argv;
  argv.erase(argv.begin() + 1);
  const CLI::App* command = &app;
  for (std::size_t i = 1; i < argv.size(); ++i) {
    const CLI::App* found = find_subcommand(*command, argv[i]);
    if (found == nullptr) {
      const std::string present = names_in(*command);
      refuse("help: '{}' has no subcommand '{}'{}", command->get_name(), argv[i],
             present.empty() ? "" : "; there are: " + present);
    }
    command = found;
  }
  argv.emplace_back("--help");
  return argv;
}

Exit print(std::string_view text) {
  fmt::print("{}", text);
  flush(stdout);
  return Exit::ok;
}

Exit run(int argc, char** argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  CommandLine line(tutti_itself);
  CLI::App& app = line.app;
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("tutti {}", library_version_string()),
                       "print the version and exit");

  CLI::App* ranks = line.add(app, run_ranks);
  LaunchOptions to_launch{.ranks = 0, .node = -1};
  std::string program;
  line.define(*ranks, run_options(to_launch, program));

  CLI::App* bench = line.add(app, bench_collectives);
  BenchOptions bench_to_run;
  line.define(*bench, bench_options(bench_to_run));
  // No fallthrough: options before it belong to `bench`, which has other options.
  CLI::App* step = line.add(*bench, bench_steps);
  StepOptions step_to_run;
  line.define(*step, step_options(step_to_run));

  for (const Subcommand& command : {compare, check, report}) line.add(app, command);

  bool json = false;
  constexpr Names<2> formats{"text", "json"};
  const Option json_option{
      "-f,--format",
      Reader{[&json, &formats](std::string_view option, const std::string& text) {
               json = parse_choice(option, text, formats) == 1;
             },
             {formats.begin(), formats.end()},
             "text"},
      "format of stdout: text or json", "FORMAT"};
  CLI::App* info = line.add(app, info_of_build);
  line.define(*info, {json_option});

  CLI::App* diagnosis = line.add(app, diagnose);
  std::string directory;
  line.define(*diagnosis, {{"DIR", &directory, "the directory of TUTTI_TRACE_DIR"}, json_option});

  CLI::App* doctor = line.add(app, examine);
  DoctorOptions doctor_options;
  std::vector<std::string_view> backends{"auto"};
  backends.insert(backends.end(), known_backends().begin(), known_backends().end());
  line.define(*doctor, {{"--backend", to_text(doctor_options.backend, backends),
                         "backend of the group of a launcher's ranks", "NAME"},
                        {"--timeout", to_timeout(doctor_options.timeout),
                         "limit of the wait of the ranks for each other", "TIME"},
                        json_option});

  CLI::App* schema = line.add(app, print_schema);
  constexpr Names<2> with_schema{"bench", "step"};
  constexpr std::array schemas{bench_schema, step_schema};
  std::size_t schema_of = 0;
  line.define(*schema, {{"COMMAND",
                         Reader{[&](std::string_view, const std::string& text) {
                                  schema_of = parse_choice("schema", text, with_schema);
                                },
                                {with_schema.begin(), with_schema.end()},
                                "bench"},
                         "bench or step"}});
  line.add(app, print_help);

  // For the man pages and completions of a build.
  if (arguments.size() == 2 && arguments[1] == "options") return print(line.description());
  check_subcommand(app, arguments);
  if (arguments[1] == print_help.name) arguments = help_arguments(app, std::move(arguments));
  for (const Subcommand& command : {compare, check, report})
    if (arguments[1] == command.name) start_report(std::move(arguments));

  const bool runs = arguments[1] == run_ranks.name;
  try {
    // Arguments after the program to run belong to that program. CLI11 takes the last one first.
    std::vector<std::string> own(
        arguments.begin() + 1,
        runs ? arguments.begin() + static_cast<std::ptrdiff_t>(own_arguments(arguments))
             : arguments.end());
    std::ranges::reverse(own);
    app.parse(std::move(own));
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
  if (app.got_subcommand(schema)) return print(schemas[schema_of]());
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
