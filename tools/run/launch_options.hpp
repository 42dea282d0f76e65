#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tutti::tool {

/// The program to start, and its ranks.
struct LaunchOptions {
  std::vector<std::string> command{};  ///< Program and arguments; found through PATH as by a shell.
  int ranks = 1;                       ///< Ranks on this node; other nodes may have other numbers.
  int nodes = 1;
  int node = 0;              ///< Number of this node. Node 0 hosts the store.
  std::string rendezvous{};  ///< "host:port" of the store of node 0; several nodes only.
  std::string token_file{};  ///< The token of the job; empty: TUTTI_TOKEN_FILE.
  std::chrono::nanoseconds join_timeout =
      std::chrono::minutes(5);  ///< Time until all nodes must have joined.
  /// Environment variables for every rank, in addition to the launcher's own.
  std::vector<std::pair<std::string, std::string>> variables{};

  enum class Output : std::uint8_t {
    prefixed,  ///< Each line begins with "[rank] ".
    inherited  ///< The ranks inherit this process's output.
  };
  Output output = Output::prefixed;

  /// The other ranks go on without a rank that a signal ended, as long as one of them does.
  bool keep_going = false;
  /// The time from the failure of one rank until the launcher ends the other ranks.
  std::chrono::nanoseconds grace{};
  /// The ranks agree on their exit status and print the failure themselves. The result is then the
  /// largest of their statuses, and the launcher prints a line only for a rank that a signal ended.
  bool ranks_report = false;
};

}  // namespace tutti::tool
