// Graphs of the double: the begin and the end of a capture, and launches.

#include <map>
#include <memory>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "backends/nccl/double/capture.hpp"
#include "backends/nccl/double/clique.hpp"
#include "backends/nccl/double/cuda_call.hpp"
#include "backends/nccl/double/double.hpp"
#include "backends/nccl/double/machine.hpp"

namespace tutti::test::nccl_double {

namespace {

/// Frees the graph's allocations, and ends its hold on communicators. Takes the lock itself.
void end_graph(Capture* capture) {
  const std::unique_ptr<Capture> owned(capture);
  for (const auto& at_end : capture->at_end) at_end();
  if (capture->blocks.empty() && capture->comms.empty()) return;
  const Lock lock(machine().mutex);
  release_comms(*capture);
  for (const auto base : capture->blocks)
    if (const Block& block = machine().memory.blocks().at(base); block.freed)
      machine().memory.retire(block);
}

}  // namespace

cudaError_t at_graph_end(cudaStream_t handle, void* object, void (*destroy)(void*)) {
  Machine& here = machine();
  const Lock lock(here.mutex);
  const Stream* stream = here.stream(handle, this_thread().device, "cudaGraphRetainUserObject");
  if (stream == nullptr || stream->capture == nullptr) return cudaErrorInvalidValue;
  stream->capture->at_end.emplace_back([object, destroy] { destroy(object); });
  return cudaSuccess;
}

void release_comms(Capture& capture) {
  for (Comm* comm : std::exchange(capture.comms, {})) --comm->graphs;
  machine().changed.notify_all();
}

cudaError_t begin_capture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Machine& here = machine();
  const Lock lock(here.mutex);
  Stream* stream = here.stream(handle, this_thread().device, "cudaStreamBeginCapture");
  if (stream == nullptr || stream->legacy || stream->capture != nullptr)
    return cudaErrorStreamCaptureUnsupported;
  const auto capture = std::shared_ptr<Capture>(new Capture, end_graph);
  capture->device = stream->device;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  join(capture, *stream);
  here.captures.push_back(capture);
  return cudaSuccess;
}

cudaError_t end_capture(cudaStream_t handle, Graph* graph) {
  Machine& here = machine();
  graph->reset();
  std::shared_ptr<Capture> capture;  // Outlives the lock.
  const Lock lock(here.mutex);
  Stream* stream = here.stream(handle, this_thread().device, "cudaStreamEndCapture");
  if (stream == nullptr || stream->capture == nullptr) return cudaErrorInvalidValue;
  capture = stream->capture;
  if (stream != capture->streams[0]) return cudaErrorStreamCaptureUnmatched;
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id())
    return cudaErrorStreamCaptureWrongThread;
  for (std::size_t i = 1; i < capture->streams.size(); ++i) {
    if (capture->known[0].at(static_cast<int>(i)) >= capture->lengths[i]) continue;
    here.violate(fmt::format("{} captures and was not joined when the capture ended",
                             here.name_of(*capture->streams[i])));
    capture->invalid = true;
  }
  here.close(capture);
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  *graph = capture;
  return cudaSuccess;
}

void launch(const Graph& graph, cudaStream_t handle) {
  Machine& here = machine();
  const Lock lock(here.mutex);
  const std::string what = "cudaGraphLaunch";
  Stream* on = here.stream(handle, graph->device, what);
  if (on == nullptr) return;
  // One launch of a graph follows the other, whatever the streams.
  if (graph->last != nullptr) here.push(*on, {.waits = graph->last}, {}, what);
  const auto start = here.record(*on);
  std::vector<Stream*> streams;
  for (std::size_t i = 0; i < graph->streams.size(); ++i) {
    streams.push_back(here.make_stream(graph->device, false));
    here.push(*streams.back(), {.waits = start}, {}, what);
  }
  std::map<Moment*, std::shared_ptr<Moment>> moments;
  for (const Command& command : graph->commands) {
    Stream& stream = *streams[static_cast<std::size_t>(command.place)];
    if (command.before) command.before();
    if (!command.operations.empty()) {
      replay(here, command.operations, stream);
    } else {
      Task task = command.task;
      if (task.waits != nullptr) task.waits = moments.at(task.waits.get());
      if (task.records != nullptr)
        task.records = moments[command.task.records.get()] = std::make_shared<Moment>();
      here.push(stream, std::move(task), command.touches, command.what);
    }
    if (command.after) command.after();
  }
  for (Stream* stream : streams) {
    here.push(*on, {.waits = here.record(*stream)}, {}, what);
    here.end_stream(*stream);
  }
  graph->last = here.record(*on);
}

namespace {

// The graph to which a cudaGraph_t or cudaGraphExec_t points.
Graph& graph_of(void* handle) {
  return *static_cast<Graph*>(handle);
}

/// The result of the call of this name, which has taken the lock itself.
cudaError_t count(const char* called, cudaError_t result) {
  return CudaCall(called).give(result);
}

cudaError_t stream_begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return count("cudaStreamBeginCapture", begin_capture(stream, mode));
}

cudaError_t stream_end_capture(cudaStream_t stream, cudaGraph_t* made) {
  *made = nullptr;
  Graph graph;
  const auto result = end_capture(stream, &graph);
  const CudaCall call("cudaStreamEndCapture");
  if (result != cudaSuccess) return call.give(result);
  ++call.here.graphs;
  *made = reinterpret_cast<cudaGraph_t>(new Graph(std::move(graph)));
  return cudaSuccess;
}

cudaError_t graph_instantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  const CudaCall call("cudaGraphInstantiateWithFlags");
  *made = nullptr;
  if (const auto error = call.broken(call.thread.device)) return call.give(error);
  if (call.here.prohibited(call.name)) return call.give(cudaErrorStreamCaptureUnsupported);
  ++call.here.graphs;
  *made = reinterpret_cast<cudaGraphExec_t>(new Graph(graph_of(graph)));
  return cudaSuccess;
}

cudaError_t graph_launch(cudaGraphExec_t graph, cudaStream_t stream) {
  {
    const CudaCall call("cudaGraphLaunch");
    if (const auto error = call.broken(graph_of(graph)->device)) return call.give(error);
  }
  launch(graph_of(graph), stream);
  return cudaSuccess;
}

cudaError_t destroy(const char* called, void* handle) {
  const std::unique_ptr<Graph> graph(&graph_of(handle));  // Outlives the lock.
  const CudaCall call(called);
  --call.here.graphs;
  return call.give(call.broken((*graph)->device));
}
cudaError_t graph_exec_destroy(cudaGraphExec_t graph) {
  return destroy("cudaGraphExecDestroy", graph);
}
cudaError_t graph_destroy(cudaGraph_t graph) {
  return destroy("cudaGraphDestroy", graph);
}

}  // namespace

void fill_graphs(backend::nccl::CudaApi& table) {
  table.stream_begin_capture = stream_begin_capture;
  table.stream_end_capture = stream_end_capture;
  table.graph_instantiate_with_flags = graph_instantiate;
  table.graph_launch = graph_launch;
  table.graph_exec_destroy = graph_exec_destroy;
  table.graph_destroy = graph_destroy;
  table.at_graph_end = at_graph_end;
}

}  // namespace tutti::test::nccl_double
