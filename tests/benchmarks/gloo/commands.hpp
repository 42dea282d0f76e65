#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tutti::bench {

struct CompareOptions {
  int ranks = 2;
  int rounds = 21;
  int calls = 50;      ///< Calls per round; fewer from 1 MiB up.
  bool plain = false;  ///< Also tutti without its settings of the system.
  int load = 0;        ///< Processes that compute meanwhile.
  std::vector<std::size_t> sizes = {8,        64,        1 << 10,  4 << 10,  16 << 10,
                                    64 << 10, 256 << 10, 1U << 20, 16U << 20};
  std::vector<std::string> operations = {"all_reduce", "all_gather", "all_gather_rows",
                                         "broadcast",  "reduce",     "barrier"};
};
/// Measures the library beside Gloo's own calls, interleaved. Returns the exit status.
int compare(const CompareOptions& options);

struct DelayedAcksOptions {
  int calls = 20;  ///< Calls of every size.
};
/// Makes a sequence of calls in which Gloo's own calls wait for delayed acknowledgements, with
/// both. Returns the exit status: 1 if the library waits too.
int delayed_acks(const DelayedAcksOptions& options);

struct RaggedOptions {
  int rank = 0;
  int ranks = 8;
  std::string store{};       ///< Address for open_store().
  std::string interface {};  ///< The text after "gloo:".
  std::size_t bytes = std::size_t{32} << 20;
  int repeats = 3;
};
/// Runs one rank; ragged_network starts all. Returns the exit status: 1 if a layout misses its
/// target.
int ragged(const RaggedOptions& options);

}  // namespace tutti::bench
