#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "backends/nccl/double/faults.hpp"
#include "backends/nccl/double/memory.hpp"
#include "backends/nccl/double/streams.hpp"

// The devices of the double: streams, events, memory, kernels. One mutex guards everything. There
// is no thread: a caller that waits or polls runs the work that can run.

namespace tutti::test::nccl_double {

using Lock = std::unique_lock<std::mutex>;

struct Device {
  Faults faults;
  Stream* legacy = nullptr;
  LaneClock host;                              ///< The work that the host has seen end.
  int kept_by_trim = 0;                        ///< Blocks, by the last cudaMemPoolTrimTo.
  std::deque<std::shared_ptr<Kernel>> engine;  ///< Unended kernels, in their order.
};

/// A call within an open group.
struct GroupedCall {
  Comm* comm = nullptr;
  std::shared_ptr<Operation> operation;
};

/// The state of the libraries per thread of the program.
struct ThreadState {
  ThreadState();
  ~ThreadState();
  int device = 0;
  int copy = 0;  ///< Of NCCL, in which the thread makes a communicator.
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  int group_depth = 0;
  std::vector<GroupedCall> group;
  bool notes_calls = false;
  std::vector<std::string> calls;
  /// Notes a call of a function by this thread, if it is asked to.
  void note(const char* function) {
    if (notes_calls) calls.emplace_back(function);
  }
};
ThreadState& this_thread();

class Machine {
 public:
  Machine();

  std::mutex mutex;
  std::condition_variable changed;
  std::array<Device, device_count> devices;
  DeviceMemory memory;
  PinnedMemory pinned;
  std::set<int> contexts;  ///< The devices that the process uses.
  std::set<ThreadState*> threads;
  std::map<std::string, int> calls;
  bool messages_side_by_side = false;
  bool connects_each_function = false;
  std::vector<std::shared_ptr<Capture>> captures;  ///< Captures that have not ended.
  int graphs = 0;  ///< Handles of graphs that have not been destroyed.
  static constexpr int newest = 23007;
  int version = newest;  ///< Of NCCL.
  bool issues_on_a_thread = false;
  bool has_windows = true;
  bool registers_buffers = true;

  // Everything below needs the lock.

  void violate(std::string text);
  std::vector<std::string> take_violations();

  Stream* make_stream(int device, bool blocking);
  void end_stream(Stream& stream);
  /// The stream of a handle; a null handle is the legacy stream of `device`. Null and a violation
  /// for an invalid handle.
  Stream* stream(cudaStream_t handle, int device, const std::string& who);
  Event* make_event(int device);
  Event* event(cudaEvent_t handle, const std::string& who);

  /// Queues `task` by the rules of the legacy stream and the host, and checks its accesses.
  void push(Stream& stream, Task task, std::span<const Touch> touches, const std::string& what);
  std::shared_ptr<Moment> record(Stream& stream);
  /// One kernel in several streams: each waits for the others. Returns where they are then.
  LaneClock push_kernel(const std::shared_ptr<Kernel>& kernel, std::span<Stream* const> streams,
                        std::span<const std::pair<Stream*, Touch>> touches);
  /// The host has seen that everything up to `clock` has ended.
  void observe(int device, const LaneClock& clock) { devices[index(device)].host.merge(clock); }

  /// Runs the work that can run.
  void progress();
  /// Runs until `done`. False, with a violation, where nothing happens for too long.
  bool wait(Lock& lock, const std::function<bool()>& done, const std::string& what);

  void check_streams_and_memory();
  bool has_streams_or_memory() const;
  /// Whether this thread may not make a call that might be unsafe now; the captures that it would
  /// harm are invalid then.
  bool prohibited(const std::string& who);
  /// The default stream cannot be used while one that waits for it captures.
  bool check_implicit_capture(const Stream& stream, const std::string& who);
  /// Nothing is put into the graph any more.
  void close(const std::shared_ptr<Capture>& capture);

  /// The kernels of its device that have to end before it begins.
  std::vector<Kernel*> before(const Kernel& kernel) const;

  static std::size_t index(int device) { return static_cast<std::size_t>(device); }
  std::string name_of(const Stream& stream) const;

 private:
  bool step(Stream& stream);
  bool step_kernels();
  void check(const Touch& touch, const Stream& stream, const LaneClock& clock,
             const std::string& what);
  void follow_legacy_rules(Stream& stream);
  void report_deadlock();
  void check_captures();

  std::vector<std::string> violations_;
  std::unordered_map<void*, std::unique_ptr<Stream>> streams_;
  std::unordered_map<void*, std::unique_ptr<Event>> events_;
  std::set<Stream*> busy_;
  std::vector<std::uint64_t> epochs_;  // By lane.
  std::vector<int> free_lanes_;
  int next_stream_ = 1;
  Clock::time_point next_wake_;  ///< When a kernel ends by the clock, or a nap from now.
  Clock::time_point next_look_;  ///< For deadlocks.
};

/// Never destroyed: a backend's threads may use it until the program ends.
Machine& machine();

// The functions of the communicators, in clique.cpp and communicators.cpp.
int device_of(const Kernel& kernel);
int copy_of(const Kernel& kernel);  ///< Of NCCL.
bool step_operations(Machine& machine, Kernel& kernel);
std::vector<Kernel*> waits_for(const Kernel& kernel);
void check_communicators(Machine& machine);
/// A communicator, stream, event or block.
bool something_is_left(const Machine& machine);
bool has_communicators();

/// A block that is freed must not be known to a communicator.
void check_not_registered(Machine& machine, const Block& block, const std::string& who);

/// The fault of this device for this function, once; nothing otherwise.
std::optional<ncclResult_t> planned_failure(Machine& machine, int device,
                                            const std::string& function);

}  // namespace tutti::test::nccl_double
