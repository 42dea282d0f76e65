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
  std::chrono::nanoseconds join_timeout =
      std::chrono::minutes(5);  ///< Time until all nodes must have joined.
  /// Set in every rank, beside the variables of the launch.
  std::vector<std::pair<std::string, std::string>> variables{};

  enum class Output : std::uint8_t {
    prefixed,  ///< Each line begins with "[rank] ".
    inherited  ///< The ranks inherit this process's output.
  };
  Output output = Output::prefixed;

  /// Time that the other ranks have after a rank has failed, before they are ended.
  std::chrono::nanoseconds grace{};
  /// The ranks agree on their end and print the failure themselves: the result is the largest of
  /// their statuses, and only a rank that a signal ended gets a line.
  bool ranks_report = false;
};

}  // namespace tutti::tool
