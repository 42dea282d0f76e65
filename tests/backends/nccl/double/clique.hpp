#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backends/nccl/double/machine.hpp"
#include "backends/nccl/double/reduce.hpp"

// The communicators of the double.

namespace tutti::test::nccl_double {

enum class Function { all_reduce, reduce, broadcast, all_gather, reduce_scatter, send, recv };
inline bool is_pair(Function function) {
  return function >= Function::send;
}

/// One call, from its start until its data has moved.
struct Operation {
  Function function = Function::all_reduce;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  Reduction how{};
  int root = -1;  ///< Or the peer of a pair.
  Comm* comm = nullptr;
  cudaStream_t stream = nullptr;
  std::uint64_t index = 0;  ///< Among the collectives of its communicator.
  std::weak_ptr<Kernel> kernel{};
  /// The bytes that it reads, where they are not those of `in` at its time.
  std::optional<std::vector<std::byte>> misread{};
  bool replayed = false;  ///< By a graph.
  bool wrong = false;     ///< Does not match the other ranks, so it moves nothing.
  bool done = false;
};

/// Memory that is registered with a communicator.
struct RegisteredMemory {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  bool window = false;
};

/// A call of ncclCommWindowRegister that waits for the other ranks.
struct WindowCall {
  RegisteredMemory memory;
  int flags = 0;
  void** out = nullptr;
};

/// The ranks that share a communicator.
struct Clique {
  int size = 0;
  std::string id;
  std::set<Function> connected;  ///< For what the ranks are.
  std::vector<Comm*> members;
  std::map<std::uint64_t, std::vector<std::shared_ptr<Operation>>> collectives;  ///< By index.
  /// By number and rank.
  std::map<std::uint64_t, std::map<int, WindowCall>> windows;
  using Pair = std::pair<int, int>;  ///< From, to.
  std::map<Pair, std::deque<std::shared_ptr<Operation>>> sends;
  std::map<Pair, std::deque<std::shared_ptr<Operation>>> receives;
};

/// A group of calls that is being queued on the streams.
struct Launch {
  struct Part {
    Comm* comm;
    std::vector<std::shared_ptr<Operation>> operations{};
  };
  std::vector<Part> parts;  ///< In the order of their first calls.
  int polls_left = 0;
  bool connects = false;  ///< The first operations of a communicator, which wait for its peers.
  Clock::time_point since = Clock::now();
};

struct Comm {
  enum class Life { alive, finalized, destroyed, aborted };

  std::shared_ptr<Clique> clique;
  int rank = 0;
  int device = 0;
  int copy = 0;  ///< Of the library.
  bool blocking = true;
  Life life = Life::alive;
  ncclResult_t state = ncclInProgress;
  bool ready = false;              ///< Made; never taken back.
  int polls_left = 0;              ///< Until it is ready, with all ranks there.
  std::set<Function> begun;        ///< What it has come to.
  std::shared_ptr<Launch> launch;  ///< Under way.
  std::uint64_t collectives = 0;
  LaneClock clock;  ///< After its last kernel.
  int graphs = 0;   ///< Groups of calls in graphs that have not been destroyed.
  std::map<int, std::pair<ncclDataType_t, std::array<std::byte, 8>>> reductions;

  std::map<void*, RegisteredMemory> registered;  ///< By handle.
  std::optional<WindowCall> window;              ///< Under way, until all ranks are there.
  std::uint64_t windows = 0;                     ///< Calls so far.

  std::pair<int, int> location() const { return {device, copy}; }
  bool usable() const { return life == Life::alive || life == Life::finalized; }
};

/// Runs a collective of one rank.
void execute_alone(const Machine& machine, const std::shared_ptr<Operation>& one);

/// Puts captured operations once more on the stream of a launch.
void replay(Machine& machine, const std::vector<std::shared_ptr<Operation>>& operations,
            Stream& stream);

}  // namespace tutti::test::nccl_double
