#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tutti::tool {

/// What to start, and how.
struct LaunchOptions {
  std::vector<std::string>
      command{};  ///< Program and arguments; the program is found as by a shell.
  int ranks = 1;  ///< On this node; another one may have another number.
  int nodes = 1;
  int node = 0;              ///< This one's number. Node 0 hosts the store.
  std::string rendezvous{};  ///< "host:port" where the store of node 0 listens; several nodes only.
  std::chrono::nanoseconds join_timeout = std::chrono::minutes(5);  ///< For all nodes to be there.
  /// Set in every rank beside what the launch sets.
  std::vector<std::pair<std::string, std::string>> variables{};

  enum class Output : std::uint8_t {
    prefixed,  ///< Each line gets "[rank] " in front.
    inherited  ///< The ranks write to what this process writes to.
  };
  Output output = Output::prefixed;

  /// How long the others may go on after a rank has failed, before they are ended.
  std::chrono::nanoseconds grace{};
  /// The ranks agree on how they end and say themselves what failed: the result is the largest of
  /// their statuses, and only a rank that a signal ended gets a line.
  bool ranks_report = false;
};

}  // namespace tutti::tool
