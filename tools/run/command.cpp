#include "run/command.hpp"

#include <cstddef>

#include "common/duration.hpp"
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

std::size_t RunCommand::own_arguments(const std::vector<std::string>& argv) {
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

OptionList RunCommand::options() {
  // Lists PROGRAM in the help. own_arguments() hides the program from CLI11, which would parse the
  // options that follow it.
  return {{"PROGRAM", &program_, "what to run, and its arguments", "[ARGUMENTS]"},
          {"-n,--ranks", &ranks_, "how many ranks to start on this node", "N"},
          {"--nnodes", &nodes_, "how many nodes run this command", "K"},
          {"--node-rank", &node_, "which of them this is, from 0", "R"},
          {"--rendezvous", &rendezvous_, "where they meet: on node 0, a free port", "HOST:PORT"},
          {"--token-file", &token_file_, "the secret of the job, the same on every node", "FILE"},
          {"--join-timeout", &join_timeout_, "how long to wait for all nodes (default 5m)", "TIME"},
          {"--keep-going", &keep_going_, "go on without a rank that a signal ended"}};
}

LaunchOptions RunCommand::parse(const std::vector<std::string>& argv) const {
  LaunchOptions options;
  if (ranks_.empty()) refuse("no number of ranks; pass -n N (see tutti run --help)");
  options.ranks = static_cast<int>(parse_integer("-n", ranks_, 1, most_ranks));
  if (!nodes_.empty())
    options.nodes = static_cast<int>(parse_integer("--nnodes", nodes_, 1, most_nodes));
  if (!node_.empty())
    options.node = static_cast<int>(parse_integer("--node-rank", node_, 0, options.nodes - 1));
  if (!rendezvous_.empty()) check_rendezvous(rendezvous_);
  options.rendezvous = rendezvous_;
  options.token_file = token_file_;
  options.keep_going = keep_going_;
  if (!join_timeout_.empty())
    options.join_timeout = parse_duration("--join-timeout", join_timeout_);
  if (options.nodes > 1 && (node_.empty() || rendezvous_.empty()))
    refuse("--nnodes {} needs {}", options.nodes,
           node_.empty() ? "--node-rank R, from 0 to K-1" : "--rendezvous HOST:PORT");
  if (options.nodes == 1 && !rendezvous_.empty())
    refuse("--rendezvous is for several nodes; pass --nnodes K and --node-rank R as well");

  auto program = own_arguments(argv);
  if (program < argv.size() && argv[program] == "--") ++program;
  if (program >= argv.size()) refuse("no PROGRAM to run (see tutti run --help)");
  options.command.assign(argv.begin() + static_cast<std::ptrdiff_t>(program), argv.end());
  return options;
}

}  // namespace tutti::tool
