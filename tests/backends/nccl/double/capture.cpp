#include "backends/nccl/double/capture.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace tutti::test::nccl_double {

Capture::~Capture() {
  if (blocks.empty()) return;
  const Lock lock(machine().mutex);
  for (const auto base : blocks)
    if (const Block& block = machine().memory.blocks().at(base); block.freed)
      machine().memory.retire(block);
}

void join(const std::shared_ptr<Capture>& capture, Stream& stream) {
  stream.capture = capture;
  stream.place = static_cast<int>(capture->streams.size());
  capture->streams.push_back(&stream);
  capture->lengths.push_back(0);
  capture->known.emplace_back();
}

void keep(Stream& stream, Command command) {
  Capture& capture = *stream.capture;
  const auto at = static_cast<std::size_t>(stream.place);
  command.place = stream.place;
  LaneClock& known = capture.known[at];
  if (command.task.waits != nullptr)
    known.merge(command.task.waits->known);
  else if (command.task.records == nullptr)
    known.set(stream.place, ++capture.lengths[at]);
  if (const auto& moment = command.task.records; moment != nullptr) {
    moment->captured = true;
    moment->capture = stream.capture;
    moment->known = known;
  }
  capture.commands.push_back(std::move(command));
}

void invalidate(Stream& stream) {
  if (stream.capture != nullptr) stream.capture->invalid = true;
}

bool prohibited(Machine& machine, const std::string& who) {
  const auto mode = this_thread().mode;
  if (mode == cudaStreamCaptureModeRelaxed) return false;
  bool found = false;
  for (const auto& capture : machine.captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool counts =
        own ? capture->mode != cudaStreamCaptureModeRelaxed
            : mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
    if (!counts) continue;
    found = true;
    capture->invalid = true;
    machine.violate(fmt::format("{} while {} captures, in a mode that prohibits it", who,
                                machine.name_of(*capture->streams[0])));
  }
  return found;
}

bool check_implicit_capture(Machine& machine, const Stream& stream, const std::string& who) {
  if (!stream.legacy) return false;
  for (const auto& capture : machine.captures)
    for (Stream* other : capture->streams)
      if (other->blocking && other->device == stream.device) {
        machine.violate(fmt::format("{} on the default stream while {} captures", who,
                                    machine.name_of(*other)));
        capture->invalid = true;
        return true;
      }
  return false;
}

namespace {

void close(Machine& machine, const std::shared_ptr<Capture>& capture) {
  capture->open = false;
  for (Stream* stream : capture->streams) stream->capture = nullptr;
  std::erase(machine.captures, capture);
}

}  // namespace

void check_captures(Machine& machine) {
  const auto open = machine.captures;
  for (const auto& capture : open) {
    machine.violate(machine.name_of(*capture->streams[0]) + " was left capturing");
    close(machine, capture);
    capture->blocks.clear();
  }
}

cudaError_t begin_capture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Machine& here = machine();
  const Lock lock(here.mutex);
  Stream* stream = here.stream(handle, this_thread().device, "cudaStreamBeginCapture");
  if (stream == nullptr || stream->legacy || stream->capture != nullptr)
    return cudaErrorStreamCaptureUnsupported;
  const auto capture = std::make_shared<Capture>();
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
  close(here, capture);
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

}  // namespace tutti::test::nccl_double
