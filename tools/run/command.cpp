#include "run/launcher.hpp"

#include <algorithm>

#include "common/exit_code.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

constexpr std::int64_t most_ranks = 4096;
constexpr std::int64_t most_nodes = 4096;

/// Refuses a text other than "host:port", or "[address]:port" for IPv6.
void check_rendezvous(const std::string& text) {
  const auto colon = text.rfind(':');
  const auto host = text.substr(0, colon == std::string::npos ? 0 : colon);
  const bool brackets = host.starts_with('[') && host.ends_with(']') && host.size() > 2;
  if (host.empty() || (!brackets && host.find_first_of(":[]/") != std::string::npos))
    refuse("--rendezvous '{}': expected HOST:PORT, or [ADDRESS]:PORT for IPv6", text);
  (void)parse_integer("--rendezvous, the port", text.substr(colon + 1), 1, 65535);
}

}  // namespace

std::size_t own_arguments(const std::vector<std::string>& argv) {
  for (std::size_t i = 2; i < argv.size(); ++i) {
    const std::string& argument = argv[i];
    if (argument == "--" || !argument.starts_with('-') || argument == "-") return i;
    const bool alone = argument == "-h" || argument == "--help" || argument == "--keep-going";
    const bool joined = argument.starts_with("--") ? argument.find('=') != std::string::npos
                                                   : argument.size() > 2;  // -n4
    if (!alone && !joined) ++i;
  }
  return argv.size();
}

OptionList run_options(LaunchOptions& to, std::string& program) {
  const auto ranks = [&to](std::string_view, const std::string& text) {
    to.ranks = static_cast<int>(parse_integer("-n", text, 1, most_ranks));
  };
  const auto rendezvous = [&to](std::string_view, const std::string& text) {
    check_rendezvous(text);
    to.rendezvous = text;
  };
  // Lists PROGRAM in the help. own_arguments() hides the program from CLI11, which would parse the
  // options that follow it.
  return {
      {"PROGRAM", &program, "what to run, and its arguments", "[ARGUMENTS]"},
      {"-n,--ranks", ranks, "ranks to start on this node, 1 to 4096; required", "N"},
      {"--nnodes", to_integer(to.nodes, 1, most_nodes), "number of nodes that run this command",
       "K"},
      {"--node-rank", to_integer(to.node, 0, most_nodes), "number of this node, from 0", "R"},
      {"--rendezvous", rendezvous, "where the nodes meet: node 0 and a free port of it",
       "HOST:PORT"},
      {"--token-file", &to.token_file,
       "file with the token of the job, the same on every node; instead of TUTTI_TOKEN_FILE",
       "FILE"},
      {"--join-timeout", to_duration(to.join_timeout), "limit of the wait for all nodes", "TIME"},
      {"--keep-going", &to.keep_going, "go on without a rank that a signal ended"}};
}

void check_run(LaunchOptions& options, const std::vector<std::string>& argv) {
  if (options.ranks == 0) refuse("no number of ranks; pass -n N (see tutti run --help)");
  (void)parse_integer("--node-rank", std::to_string(std::max(options.node, 0)), 0,
                      options.nodes - 1);
  if (options.nodes > 1 && (options.node < 0 || options.rendezvous.empty()))
    refuse("--nnodes {} needs {}", options.nodes,
           options.node < 0 ? "--node-rank R, from 0 to K-1" : "--rendezvous HOST:PORT");
  options.node = std::max(options.node, 0);
  if (options.nodes == 1 && !options.rendezvous.empty())
    refuse("--rendezvous is for several nodes; pass --nnodes K and --node-rank R as well");

  auto program = own_arguments(argv);
  if (program < argv.size() && argv[program] == "--") ++program;
  if (program >= argv.size()) refuse("no PROGRAM to run (see tutti run --help)");
  options.command.assign(argv.begin() + static_cast<std::ptrdiff_t>(program), argv.end());
}

}  // namespace tutti::tool
