#include "backends/nccl/double/machine.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "backends/nccl/double/capture.hpp"

namespace tutti::test::nccl_double {

namespace {

/// The time after which a blocking call of the double gives up.
constexpr auto patience = std::chrono::seconds(40);
/// The sleep of a waiter when no kernel ends by the clock and no work is queued.
constexpr auto nap = std::chrono::milliseconds(20);

constexpr std::size_t most_violations = 50;

bool overlap(const Access& access, std::size_t begin, std::size_t end) {
  return access.begin < end && begin < access.end;
}

}  // namespace

ThreadState::ThreadState() {
  const Lock lock(machine().mutex);
  machine().threads.insert(this);
}

ThreadState::~ThreadState() {
  const Lock lock(machine().mutex);
  if (group_depth != 0)
    machine().violate(fmt::format("a thread ended inside ncclGroupStart, {} deep", group_depth));
  machine().threads.erase(this);
}

ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

Machine& machine() {
  static auto* const only = new Machine;
  return *only;
}

Machine::Machine() {
  for (int device = 0; device < device_count; ++device) {
    Stream* legacy = make_stream(device, false);
    legacy->legacy = true;
    devices[index(device)].legacy = legacy;
  }
}

void Machine::violate(std::string text) {
  if (violations_.size() < most_violations) violations_.push_back(std::move(text));
}

std::vector<std::string> Machine::take_violations() {
  return std::exchange(violations_, {});
}

std::string Machine::name_of(const Stream& stream) const {
  return stream.legacy ? fmt::format("the default stream of device {}", stream.device)
                       : fmt::format("stream {} of device {}", stream.number, stream.device);
}

Stream* Machine::make_stream(int device, bool blocking) {
  auto made = std::make_unique<Stream>();
  made->device = device;
  made->number = next_stream_++;
  made->blocking = blocking;
  if (free_lanes_.empty()) {
    made->lane = static_cast<int>(epochs_.size());
    epochs_.push_back(0);
  } else {
    made->lane = free_lanes_.back();
    free_lanes_.pop_back();
  }
  Stream* stream = made.get();
  streams_[stream] = std::move(made);
  return stream;
}

void Machine::end_stream(Stream& stream) {
  stream.alive = false;
  if (stream.tasks.empty()) free_lanes_.push_back(stream.lane);  // Else when they have run.
}

Stream* Machine::stream(cudaStream_t handle, int device, const std::string& who) {
  if (handle == nullptr || handle == cudaStreamLegacy) return devices[index(device)].legacy;
  const auto found = streams_.find(handle);
  if (found == streams_.end() || !found->second->alive) {
    violate(
        fmt::format("{}: {} stream", who, found == streams_.end() ? "this is no" : "a destroyed"));
    return nullptr;
  }
  return found->second.get();
}

Event* Machine::make_event(int device) {
  auto made = std::make_unique<Event>();
  made->device = device;
  Event* event = made.get();
  events_[event] = std::move(made);
  return event;
}

Event* Machine::event(cudaEvent_t handle, const std::string& who) {
  const auto found = events_.find(handle);
  if (found == events_.end() || !found->second->alive) {
    violate(
        fmt::format("{}: {} event", who, found == events_.end() ? "this is no" : "a destroyed"));
    return nullptr;
  }
  return found->second.get();
}

// The legacy stream waits for the work of the blocking streams, and they wait for its work.
void Machine::follow_legacy_rules(Stream& stream) {
  const auto after = [&](Stream& earlier) {
    if (&earlier == &stream) return;
    if (!earlier.tasks.empty()) {
      auto moment = std::make_shared<Moment>();
      earlier.tasks.push_back({.records = moment});
      stream.tasks.push_back({.waits = std::move(moment)});
      busy_.insert(&stream);
    }
    stream.clock.merge(earlier.clock);
  };
  if (stream.blocking) after(*devices[index(stream.device)].legacy);
  if (!stream.legacy) return;
  for (auto& [handle, other] : streams_)
    if (other->blocking && other->alive && other->device == stream.device) after(*other);
}

void Machine::push(Stream& stream, Task task, std::span<const Touch> touches,
                   const std::string& what) {
  if (stream.enqueuing != 0)
    violate(fmt::format("{} on {} while NCCL is still putting calls on it (ncclInProgress)", what,
                        name_of(stream)));
  if (stream.capture != nullptr)
    return keep(stream, {.task = std::move(task),
                         .touches = std::vector<Touch>(touches.begin(), touches.end()),
                         .what = what});
  check_implicit_capture(stream, what);
  follow_legacy_rules(stream);
  stream.clock.merge(devices[index(stream.device)].host);
  if (task.waits != nullptr) stream.clock.merge(task.waits->clock);
  stream.clock.set(stream.lane, ++epochs_[static_cast<std::size_t>(stream.lane)]);
  for (const Touch& touch : touches) check(touch, stream, stream.clock, what);
  if (task.records != nullptr) task.records->clock = stream.clock;
  stream.tasks.push_back(std::move(task));
  busy_.insert(&stream);
  changed.notify_all();
}

std::shared_ptr<Moment> Machine::record(Stream& stream) {
  auto moment = std::make_shared<Moment>();
  push(stream, {.records = moment}, {}, "recording an event");
  return moment;
}

LaneClock Machine::push_kernel(const std::shared_ptr<Kernel>& kernel,
                               std::span<Stream* const> streams,
                               std::span<const std::pair<Stream*, Touch>> touches) {
  kernel->streams = streams.size();
  LaneClock all;
  for (Stream* stream : streams) {
    follow_legacy_rules(*stream);
    all.merge(stream->clock);
    all.merge(devices[index(stream->device)].host);
    all.set(stream->lane, ++epochs_[static_cast<std::size_t>(stream->lane)]);
  }
  for (const auto& [stream, touch] : touches) check(touch, *stream, all, kernel->what);
  for (Stream* stream : streams) {
    stream->clock = all;
    stream->tasks.push_back({.kernel = kernel});
    busy_.insert(stream);
  }
  changed.notify_all();
  return all;
}

void Machine::check(const Touch& touch, const Stream& stream, const LaneClock& clock,
                    const std::string& what) {
  if (touch.bytes == 0) return;
  Block* block = memory.find(touch.data);
  if (block == nullptr)
    return violate(
        fmt::format("{} uses {} bytes that are not memory of a device", what, touch.bytes));
  if (block->freed) return violate(fmt::format("{} uses freed memory", what));
  if (block->device != stream.device)
    return violate(
        fmt::format("{} on {} uses memory of device {}", what, name_of(stream), block->device));
  const std::size_t begin = reinterpret_cast<std::uintptr_t>(touch.data) - block->base;
  const std::size_t end = begin + touch.bytes;
  if (end > block->bytes)
    return violate(
        fmt::format("{} uses bytes {} to {} of a block of {}", what, begin, end, block->bytes));
  for (const Access& access : block->accesses)
    if (overlap(access, begin, end) && (access.write || touch.write) &&
        clock.at(access.lane) < access.epoch) {
      violate(fmt::format("race: {} on {} {} what {} {}, and nothing puts them in order", what,
                          name_of(stream), touch.write ? "writes" : "reads", access.what,
                          access.write ? "writes" : "reads"));
      break;
    }
  // Later accesses need no comparison with accesses that this one follows and covers.
  std::erase_if(block->accesses, [&](const Access& access) {
    return begin <= access.begin && access.end <= end && (touch.write || !access.write) &&
           clock.at(access.lane) >= access.epoch;
  });
  block->accesses.push_back({begin, end, touch.write, stream.lane, clock.at(stream.lane),
                             fmt::format("{} on {}", what, name_of(stream))});
}

// Runs the head of the stream where it can. True when something happened.
bool Machine::step(Stream& stream) {
  if (devices[index(stream.device)].faults.sticky != cudaSuccess) return false;
  Task& task = stream.tasks.front();
  if (task.kernel != nullptr) {
    if (!task.here) {
      task.here = true;
      ++task.kernel->arrived;
      return true;
    }
    if (!task.kernel->done) return false;
  } else if (task.waits != nullptr) {
    if (!task.waits->reached) return false;
  } else if (task.records != nullptr) {
    task.records->reached = true;
  } else {
    if (task.takes > std::chrono::nanoseconds(0)) {
      const auto now = Clock::now();
      if (!task.started) task.started = now;
      const auto end = *task.started + task.takes;
      if (now < end) {
        next_wake_ = std::min(next_wake_, end);
        return false;
      }
    }
    if (task.run) task.run();
  }
  stream.tasks.pop_front();
  return true;
}

std::vector<Kernel*> Machine::before(const Kernel& kernel) const {
  std::vector<Kernel*> found;
  for (const auto& other : devices[index(device_of(kernel))].engine) {
    if (other.get() == &kernel) break;
    const bool apart =
        messages_side_by_side && (kernel.messages || other->messages) && kernel.comm != other->comm;
    if (!other->done && !apart && copy_of(kernel) == copy_of(*other)) found.push_back(other.get());
  }
  return found;
}

bool Machine::step_kernels() {
  bool moved = false;
  for (Device& device : devices) {
    moved =
        std::erase_if(device.engine, [](const auto& kernel) { return kernel->done; }) != 0 || moved;
    if (device.faults.sticky != cudaSuccess) continue;
    for (const auto& kernel : device.engine) {
      if (!kernel->started && kernel->arrived == kernel->streams && before(*kernel).empty()) {
        kernel->started = true;
        moved = true;
      }
    }
  }
  for (Device& device : devices)
    for (const auto& kernel : device.engine)
      if (kernel->started && !kernel->done) moved = step_operations(*this, *kernel) || moved;
  return moved;
}

void Machine::progress() {
  next_wake_ = Clock::now() + nap;
  bool any = false;
  for (bool moved = true; moved;) {
    moved = false;
    const std::vector<Stream*> now(busy_.begin(), busy_.end());
    for (Stream* stream : now) {
      while (!stream->tasks.empty() && step(*stream)) moved = true;
      if (!stream->tasks.empty()) continue;
      busy_.erase(stream);
      if (!stream->alive) free_lanes_.push_back(stream->lane);
    }
    moved = step_kernels() || moved;
    any = any || moved;
  }
  if (any) changed.notify_all();
  if (any || Clock::now() < next_look_) return;
  next_look_ = Clock::now() + nap;
  report_deadlock();
}

bool Machine::wait(Lock& lock, const std::function<bool()>& done, const std::string& what) {
  const auto limit = Clock::now() + patience;
  while (true) {
    progress();
    if (done()) return true;
    if (Clock::now() >= limit) {
      violate(fmt::format("{} does not return: what it waits for does not happen", what));
      return false;
    }
    changed.wait_until(lock, next_wake_);
  }
}

// Looks for kernels that wait for each other in a circle.
void Machine::report_deadlock() {
  std::vector<Kernel*> path;
  std::unordered_set<Kernel*> finished;
  const std::function<bool(Kernel*)> visit = [&](Kernel* kernel) {
    if (const auto again = std::ranges::find(path, kernel); again != path.end()) {
      std::string text = "deadlock:";
      bool known = false;
      for (auto at = again; at != path.end(); ++at) {
        known = known || (*at)->reported;
        (*at)->reported = true;
        text += fmt::format(" {} waits for", (*at)->what);
      }
      if (!known) violate(text + " the first of these; the order of calls differs between ranks");
      return true;
    }
    if (!finished.insert(kernel).second) return false;
    path.push_back(kernel);
    for (Kernel* other : waits_for(*kernel))
      if (visit(other)) return true;
    path.pop_back();
    return false;
  };
  for (Device& device : devices)
    for (const auto& kernel : device.engine) {
      path.clear();
      if (visit(kernel.get())) return;
    }
}

bool Machine::prohibited(const std::string& who) {
  const auto mode = this_thread().mode;
  if (mode == cudaStreamCaptureModeRelaxed) return false;
  bool found = false;
  for (const auto& capture : captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool counts =
        own ? capture->mode != cudaStreamCaptureModeRelaxed
            : mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
    if (!counts) continue;
    found = true;
    capture->invalid = true;
    violate(fmt::format("{} while {} captures, in a mode that prohibits it", who,
                        name_of(*capture->streams[0])));
  }
  return found;
}

bool Machine::check_implicit_capture(const Stream& stream, const std::string& who) {
  if (!stream.legacy) return false;
  for (const auto& capture : captures)
    for (Stream* other : capture->streams)
      if (other->blocking && other->device == stream.device) {
        violate(fmt::format("{} on the default stream while {} captures", who, name_of(*other)));
        capture->invalid = true;
        return true;
      }
  return false;
}

void Machine::close(const std::shared_ptr<Capture>& capture) {
  capture->open = false;
  for (Stream* stream : capture->streams) stream->capture = nullptr;
  std::erase(captures, capture);
}

void Machine::check_captures() {
  const auto open = captures;
  for (const auto& capture : open) {
    violate(name_of(*capture->streams[0]) + " was left capturing");
    close(capture);
    capture->blocks.clear();
    release_comms(*capture);
  }
}

bool Machine::has_streams_or_memory() const {
  return std::ranges::any_of(
             streams_, [](const auto& one) { return one.second->alive && !one.second->legacy; }) ||
         pinned.blocks() != 0 || graphs != 0 ||
         std::ranges::any_of(events_, [](const auto& one) { return one.second->alive; }) ||
         std::ranges::any_of(memory.blocks(), [](const auto& one) { return !one.second.freed; });
}

bool something_is_left(const Machine& machine) {
  return machine.has_streams_or_memory() || has_communicators();
}

void Machine::check_streams_and_memory() {
  progress();
  check_captures();
  int streams = 0;
  int events = 0;
  std::size_t blocks = 0;
  std::size_t bytes = 0;
  for (auto& [handle, stream] : streams_) {
    if (stream->legacy || !stream->alive) continue;
    ++streams;
    end_stream(*stream);
  }
  for (auto& [handle, event] : events_) events += std::exchange(event->alive, false) ? 1 : 0;
  for (auto& [base, block] : memory.blocks()) {
    block.of_pool = false;  // The next test looks at its own.
    if (block.freed) continue;
    ++blocks;
    bytes += block.bytes;
    block.freed = true;
    memory.retire(block);
  }
  if (pinned.blocks() != 0)
    violate(fmt::format("{} blocks of {} pinned bytes were never freed", pinned.blocks(),
                        pinned.bytes()));
  pinned.forget();
  if (graphs != 0) violate(fmt::format("{} graphs were never destroyed", std::exchange(graphs, 0)));
  if (streams != 0) violate(fmt::format("{} streams were never destroyed", streams));
  if (events != 0) violate(fmt::format("{} events were never destroyed", events));
  if (blocks != 0) violate(fmt::format("{} blocks of {} bytes were never freed", blocks, bytes));
  for (ThreadState* thread : threads) {
    if (thread->group_depth != 0)
      violate(fmt::format("a group with {} calls was left open", thread->group.size()));
    thread->group_depth = 0;
    thread->group.clear();
    if (thread->last_error != cudaSuccess)
      violate(fmt::format("a thread was left with CUDA error {}; cudaGetLastError() clears it",
                          static_cast<int>(thread->last_error)));
    thread->last_error = cudaSuccess;
  }
}

}  // namespace tutti::test::nccl_double
