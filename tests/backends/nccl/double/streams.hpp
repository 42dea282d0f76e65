#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/nccl/double/memory.hpp"

// Streams, events and queued work.

namespace tutti::test::nccl_double {

using Clock = std::chrono::steady_clock;

/// The state of an event since it was last recorded.
struct Capture;
struct Moment {
  bool reached = false;
  LaneClock clock;
  bool captured = false;  ///< In a graph, where this is:
  std::weak_ptr<Capture> capture{};
  LaneClock known{};  ///< How far it is behind each stream of the capture.
};

struct Comm;
struct Operation;

/// One NCCL kernel of one rank: all operations of a group on one communicator.
struct Kernel {
  Comm* comm = nullptr;
  std::string what;
  std::vector<std::shared_ptr<Operation>> operations;
  bool messages = false;  ///< It only sends and receives.
  std::size_t streams = 0;
  std::size_t arrived = 0;  ///< Streams that have come to it.
  bool started = false;
  bool done = false;
  bool reported = false;  ///< In a deadlock.
};

/// A queued item of a stream: one of these.
struct Task {
  std::function<void()> run{};
  std::shared_ptr<Moment> records{};
  std::shared_ptr<Moment> waits{};
  std::shared_ptr<Kernel> kernel{};
  std::chrono::nanoseconds takes{};
  std::optional<Clock::time_point> started{};
  bool here = false;  ///< The kernel knows that its stream has come.
};

struct Stream {
  int device = 0;
  int number = 0;
  bool legacy = false;
  bool blocking = false;  ///< Waits for the legacy stream, and it for this one.
  bool alive = true;
  std::shared_ptr<Capture> capture{};  ///< Work queued now is captured into this graph,
  int place = 0;                       ///< as its stream of this number.
  int lane = 0;
  int enqueuing = 0;  ///< Groups of NCCL calls that are not on it yet.
  LaneClock clock;
  std::deque<Task> tasks;
};

struct Event {
  int device = 0;
  bool alive = true;
  std::shared_ptr<Moment> last;  ///< Null before it is recorded.
};

}  // namespace tutti::test::nccl_double
