#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <tutti/version.hpp>

#include "bench/bench.hpp"
#include "bench/command.hpp"
#include "bench/schema.hpp"
#include "common/exit_code.hpp"
#include "common/text.hpp"
#include "inspect/info.hpp"
#include "loss/command.hpp"
#include "loss/loss.hpp"
#include "loss/schema.hpp"
#include "run/command.hpp"
#include "run/launcher.hpp"

namespace {

using tutti::tool::Exit;
using tutti::tool::Failure;
using tutti::tool::refuse;

constexpr std::string_view present = "run, bench, loss, info, schema";
constexpr std::array<std::string_view, 7> later{"compare", "check",  "report",     "pairs",
                                                "topo",    "doctor", "completions"};

/// CLI11's own words for an unknown subcommand do not say which there are.
void check_subcommand(const std::vector<std::string>& argv) {
  if (argv.size() < 2) refuse("no subcommand; there are: {} (see tutti --help)", present);
  const std::string& name = argv[1];
  for (const char* known : {"run", "bench", "loss", "info", "schema", "-h", "--help", "--version"})
    if (name == known) return;
  if (name.starts_with('-')) refuse("unknown option '{}' (see tutti --help)", name);
  if (std::find(later.begin(), later.end(), name) != later.end())
    refuse("subcommand '{}' is not in this release; there are: {}", name, present);
  refuse("unknown subcommand '{}'; there are: {}", name, present);
}

Exit print(std::string_view text) {
  fmt::print("{}", text);
  if (std::fflush(stdout) != 0) throw Failure(Exit::internal, "cannot write the output to stdout");
  return Exit::ok;
}

Exit run(int argc, char** argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  check_subcommand(arguments);

  CLI::App app("Collective operations: measure the wire, see what is built.", "tutti");
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("tutti {}", tutti::library_version_string()));

  CLI::App* ranks = app.add_subcommand("run", "start N ranks of a program");
  tutti::tool::RunCommand run_command;
  run_command.define(*ranks);

  CLI::App* bench = app.add_subcommand("bench", "measure collectives; every result is checked");
  tutti::tool::BenchCommand command;
  command.define(*bench);

  CLI::App* loss = app.add_subcommand("loss", "check and time losses of the rows of all ranks");
  tutti::tool::LossCommand loss_command;
  loss_command.define(*loss);

  CLI::App* info = app.add_subcommand("info", "versions, backends, and what auto would pick");
  std::string info_format = "text";
  info->add_option("-f,--format", info_format, "text or json")->type_name("FORMAT");

  CLI::App* schema = app.add_subcommand("schema", "the JSON Schema of what bench and loss print");
  std::string schema_of = "bench";
  schema->add_option("command", schema_of, "bench or loss (bench)")->type_name("COMMAND");

  const bool runs = arguments[1] == "run";
  try {
    // What follows the program to run is its own.
    app.parse(runs ? static_cast<int>(tutti::tool::RunCommand::own_arguments(arguments)) : argc,
              argv);
  } catch (const CLI::Success& success) {  // --help, --version
    app.exit(success);
    return Exit::ok;
  } catch (const CLI::ParseError& error) {
    const std::string name = arguments[1].starts_with('-') ? "" : " " + arguments[1];
    refuse("{} (see tutti{} --help)", error.what(), name);
  }

  if (runs) return static_cast<Exit>(launch(run_command.parse(arguments)));
  if (app.got_subcommand(schema)) {
    const bool of_loss = tutti::tool::parse_choice("schema", schema_of, {"bench", "loss"}) == 1;
    return of_loss ? print(tutti::tool::loss_schema()) : print(tutti::tool::schema());
  }
  if (app.got_subcommand("info")) {
    const bool json = tutti::tool::parse_choice("--format", info_format, {"text", "json"}) == 1;
    return print(json ? tutti::tool::info_json() : tutti::tool::info_text());
  }
  if (app.got_subcommand(loss)) return run_loss(loss_command.parse(arguments), stdout, stderr);
  if (command.help_sizes()) return print(tutti::tool::sizes_help());
  return run_bench(command.parse(arguments), stdout, stderr);
}

}  // namespace

int main(int argc, char** argv) {
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
