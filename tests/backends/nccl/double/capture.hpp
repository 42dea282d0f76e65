#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/nccl/double/streams.hpp"
#include "nccl/gpu.hpp"

// Capture into graphs. Work that is queued on a capturing stream is recorded, and queued on streams
// at every launch of the graph. Everything here needs the lock.

namespace tutti::test::nccl_double {

/// A command that was queued on one of the streams of a capture.
struct Command {
  int place = 0;
  Task task{};
  std::vector<Touch> touches{};
  std::string what{};
  std::vector<std::shared_ptr<Operation>> operations{};  ///< Of NCCL; then there is no task.
  std::function<void()> before{};                        ///< Of each launch,
  std::function<void()> after{};                         ///< when it has been put on its stream.
};

struct Capture {
  int device = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread{};
  bool open = true;
  bool invalid = false;
  std::vector<Stream*> streams{};        ///< The one where it began first.
  std::vector<std::uint64_t> lengths{};  ///< How much is on each of them,
  std::vector<LaneClock> known{};        ///< and how much of the others comes before its end.
  std::vector<Command> commands{};
  std::vector<std::uintptr_t> blocks{};         ///< The blocks allocated in the capture.
  std::shared_ptr<Moment> last{};               ///< The end of its last launch.
  std::vector<Comm*> comms{};                   ///< Of the groups of NCCL among the commands.
  std::vector<std::function<void()>> at_end{};  ///< Of the program, like cudaUserObject.
};

/// `stream` takes part from now on.
void join(const std::shared_ptr<Capture>& capture, Stream& stream);
/// Puts a command on a stream that captures.
void keep(Stream& stream, Command command);
void invalidate(Stream& stream);
/// Calls destroy(object) when the graph of the stream's capture is destroyed.
cudaError_t at_graph_end(cudaStream_t stream, void* object, void (*destroy)(void*));
/// Ends the hold of a graph on communicators.
void release_comms(Capture& capture);
/// The functions of graphs.cpp.
void fill_graphs(backend::nccl::CudaApi& table);

}  // namespace tutti::test::nccl_double
