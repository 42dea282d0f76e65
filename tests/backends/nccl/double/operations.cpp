// Operations of the double: groups, connecting, and the rules for callers.

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "backends/nccl/double/capture.hpp"
#include "backends/nccl/double/library.hpp"

namespace tutti::test::nccl_double {

namespace {

constexpr std::size_t most_grouped_calls = 2048;

/// Whether input and output are apart, or where NCCL says that they may be the same.
bool is_in_place_or_apart(const Operation& operation) {
  const auto touches = touches_of(operation);
  if (touches.size() < 2 || !overlap(touches[0], touches[1])) return true;
  const auto* in = static_cast<const std::byte*>(operation.in);
  const auto* out = static_cast<const std::byte*>(operation.out);
  const std::size_t block =
      operation.count * size_of(operation.type) * static_cast<std::size_t>(operation.comm->rank);
  if (operation.function == Function::all_gather) return in == out + block;
  if (operation.function == Function::reduce_scatter) return out == in + block;
  return in == out;
}

bool matches(const Operation& a, const Operation& b, bool mixes_reductions) {
  return a.function == b.function && a.count == b.count && a.type == b.type &&
         (a.how.op == b.how.op || mixes_reductions) && a.root == b.root && a.replayed == b.replayed;
}

/// Puts an operation among those of its clique, and compares it with its partners.
void enlist(Machine& here, const std::string& who, const std::shared_ptr<Operation>& operation) {
  Comm& comm = *operation->comm;
  Clique& clique = *comm.clique;
  const bool mixes = here.devices[Machine::index(comm.device)].faults.mixes_reductions;
  const auto compare = [&](const std::shared_ptr<Operation>& other, bool equal) {
    if (equal) return;
    operation->wrong = true;
    other->wrong = true;
    here.violate(
        fmt::format("{}: mismatch: {} meets {}", who, text_of(*operation), text_of(*other)));
  };
  if (!is_pair(operation->function)) {
    operation->index = comm.collectives++;
    auto& all = clique.collectives[operation->index];
    all.resize(static_cast<std::size_t>(clique.size));
    for (const auto& other : all)
      if (other != nullptr) {
        compare(other, matches(*operation, *other, mixes));
        break;
      }
    all[Machine::index(comm.rank)] = operation;
    return;
  }
  const bool sends = operation->function == Function::send;
  const Clique::Pair pair =
      sends ? Clique::Pair{comm.rank, operation->root} : Clique::Pair{operation->root, comm.rank};
  auto& mine = (sends ? clique.sends : clique.receives)[pair];
  auto& theirs = (sends ? clique.receives : clique.sends)[pair];
  mine.push_back(operation);
  if (theirs.size() < mine.size()) return;
  const auto& other = theirs[mine.size() - 1];
  compare(other, operation->count == other->count && operation->type == other->type &&
                     operation->replayed == other->replayed);
}

std::vector<Stream*> streams_of(const NcclCall& call, const Launch::Part& part) {
  std::vector<Stream*> streams;
  for (const auto& operation : part.operations) {
    Stream* stream = call.here.stream(operation->stream, part.comm->device, call.name);
    if (stream != nullptr && std::ranges::find(streams, stream) == streams.end())
      streams.push_back(stream);
  }
  return streams;
}

/// Puts the kernel of some operations of one rank on its streams.
void put(Machine& here, const std::string& who, Comm& comm,
         std::vector<std::shared_ptr<Operation>> operations, std::span<Stream* const> streams) {
  auto kernel = std::make_shared<Kernel>();
  kernel->comm = &comm;
  std::vector<std::pair<Stream*, Touch>> touches;
  for (const auto& operation : operations) {
    enlist(here, who, operation);
    misread_windows(here, *operation);
    operation->kernel = kernel;
    Stream* stream = here.stream(operation->stream, comm.device, who);
    for (const Touch& touch : touches_of(*operation)) touches.emplace_back(stream, touch);
  }
  kernel->operations = std::move(operations);
  kernel->messages = std::ranges::all_of(kernel->operations,
                                         [](const auto& one) { return is_pair(one->function); });
  kernel->what = text_of(*kernel->operations[0]);
  if (kernel->operations.size() > 1)
    kernel->what =
        fmt::format("a group of {} that begins with {}", kernel->operations.size(), kernel->what);
  here.devices[Machine::index(comm.device)].engine.push_back(kernel);
  comm.clock = here.push_kernel(kernel, streams, touches);
}

/// Puts the kernels of a group on their streams.
void issue(const NcclCall& call, Launch& launch) {
  for (Launch::Part& part : launch.parts) {
    Comm& comm = *part.comm;
    const auto streams = streams_of(call, part);
    for (Stream* stream : streams) --stream->enqueuing;
    comm.launch = nullptr;
    library().launching[comm.location()].erase(&comm);
    if (!comm.usable()) continue;
    comm.state = ncclSuccess;
    if (!streams.empty() && streams[0]->capture != nullptr) {
      ++comm.graphs;
      streams[0]->capture->comms.push_back(&comm);
      keep(*streams[0], {.what = "a group of NCCL", .operations = std::move(part.operations)});
    } else {
      if (comm.graphs != 0 && call.here.issues_on_a_thread)
        (void)call.here.prohibited("cudaEventQuery of NCCL, after a capture,");
      put(call.here, call.name, comm, std::move(part.operations), streams);
    }
  }
}

/// Ranks connect when all have come to the first operation, or to the first of the same function.
bool connected(const NcclCall& call, const Launch& launch) {
  return std::ranges::all_of(launch.parts, [&](const Launch::Part& part) {
    return std::ranges::all_of(part.operations, [&](const auto& operation) {
      const auto function = operation->function;
      const bool each = call.here.connects_each_function && !is_pair(function);
      auto& connected = part.comm->clique->connected;
      if (connected.contains(function) || (!each && !connected.empty())) return true;
      const bool all = std::ranges::all_of(part.comm->clique->members, [&](const Comm* other) {
        return other->usable() && (each ? other->begun.contains(function) : !other->begun.empty());
      });
      if (all) connected.insert(function);
      return all;
    });
  });
}

bool connects(const Launch& launch) {
  return std::ranges::any_of(
      launch.parts, [](const Launch::Part& part) { return part.comm->clique->connected.empty(); });
}

/// True if this call may wait for its peers, as far as the thread of another call can know.
bool may_wait(const Launch& launch) {
  constexpr std::chrono::milliseconds long_for_one_rank(2);
  return launch.connects || Clock::now() - launch.since > long_for_one_rank;
}

bool stuck(const NcclCall& call, const Launch& launch) {
  return std::ranges::any_of(launch.parts, [&](const Launch::Part& part) {
    return faults_of(call, *part.comm).stays_in_progress;
  });
}

/// Ends a window's registration once all ranks have come to it.
void advance_window(const NcclCall& call, Comm& comm) {
  const auto& all = comm.clique->windows.at(comm.windows - 1);
  if (all.size() != Machine::index(comm.clique->size)) return;
  const WindowCall mine = *std::exchange(comm.window, std::nullopt);
  comm.state = ncclSuccess;
  for (const auto& [rank, theirs] : all) {
    if (theirs.memory.bytes == mine.memory.bytes && theirs.flags == mine.flags) continue;
    comm.state = ncclInvalidArgument;
    return call.here.violate(
        fmt::format("ncclCommWindowRegister: {} bytes on {}, {} on rank {}, or other flags",
                    mine.memory.bytes, text_of(comm), theirs.memory.bytes, rank));
  }
  *mine.out = remember(comm, mine.memory);
}

}  // namespace

void advance(const NcclCall& call, Comm& comm) {
  if (comm.state != ncclInProgress) return;
  if (!comm.ready) {
    if (!all_there(*comm.clique) || faults_of(call, comm).init_hangs || comm.polls_left-- > 0)
      return;
    comm.ready = true;
    comm.state = ncclSuccess;
  } else if (comm.launch != nullptr) {
    const auto launch = comm.launch;
    if (call.here.issues_on_a_thread) return;
    if (connected(call, *launch) && !stuck(call, *launch) && launch->polls_left-- <= 0)
      issue(call, *launch);
  } else if (comm.window) {
    if (!faults_of(call, comm).stays_in_progress && comm.polls_left-- <= 0)
      advance_window(call, comm);
  } else if (comm.life == Comm::Life::finalized) {
    const auto& engine = call.here.devices[Machine::index(comm.device)].engine;
    const bool quiet = std::ranges::none_of(
        engine, [&](const auto& kernel) { return kernel->comm == &comm && !kernel->done; });
    const bool all = std::ranges::all_of(comm.clique->members, [](const Comm* other) {
      return other != nullptr && other->life != Comm::Life::alive;
    });
    if (quiet && all && comm.graphs == 0 && !faults_of(call, comm).finalize_hangs)
      comm.state = ncclSuccess;
  }
}

namespace {

bool only_messages(const Launch& launch) {
  return std::ranges::all_of(launch.parts, [](const Launch::Part& part) {
    return std::ranges::all_of(part.operations,
                               [](const auto& one) { return is_pair(one->function); });
  });
}

bool overlaps_within_group(const std::vector<std::shared_ptr<Operation>>& operations) {
  for (std::size_t i = 0; i < operations.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      for (const Touch& a : touches_of(*operations[i]))
        for (const Touch& b : touches_of(*operations[k]))
          if ((a.write || b.write) && a.bytes != 0 && b.bytes != 0 && overlap(a, b)) return true;
  return false;
}

/// The thread of NCCL that puts the calls of a non-blocking group on their streams.
void issue_on_a_thread(const std::shared_ptr<Launch>& launch) {
  std::thread([launch] {
    this_thread().device = launch->parts[0].comm->device;
    const NcclCall call("a thread of NCCL");
    const auto go = [&] {
      return launch->parts.empty() || (connected(call, *launch) && !stuck(call, *launch));
    };
    if (call.here.wait(call.lock, go, call.name)) issue(call, *launch);
    call.here.changed.notify_all();
  }).detach();
}

/// The end of the outermost group.
ncclResult_t launch_group(const NcclCall& call) {
  auto launch = std::make_shared<Launch>();
  launch->polls_left = polls;
  for (GroupedCall& grouped : std::exchange(call.thread.group, {})) {
    auto part = std::ranges::find(launch->parts, grouped.comm, &Launch::Part::comm);
    if (part == launch->parts.end())
      part = launch->parts.insert(part, Launch::Part{.comm = grouped.comm});
    part->operations.push_back(std::move(grouped.operation));
  }
  for (auto& [location, owner] : library().in_group)
    if (owner == std::this_thread::get_id()) owner = {};
  if (launch->parts.empty()) return ncclSuccess;
  for (const Launch::Part& part : launch->parts) {
    if (!part.comm->usable())
      return call.wrong(ncclInvalidArgument,
                        text_of(*part.comm) + " was ended while a group had calls on it");
    if (const auto planned_result = planned(call, part.comm->device)) return *planned_result;
    if (part.comm->blocking != launch->parts[0].comm->blocking)
      return call.wrong(ncclInvalidArgument,
                        "blocking and non-blocking communicators in one group");
    const auto streams = streams_of(call, part);
    for (const Stream* stream : streams)
      if (stream->capture != streams[0]->capture ||
          (stream->capture != nullptr && stream != streams[0]))
        return call.wrong(
            ncclInvalidUsage,
            "a group on streams of which not all are captured, or on several that are");
    if (overlaps_within_group(part.operations))
      call.wrong(ncclInvalidUsage, "two operations of one group use the same memory, which " +
                                       text_of(*part.operations[0]) + " is one of");
  }
  launch->connects = connects(*launch);
  for (const Launch::Part& part : launch->parts) {
    for (Stream* stream : streams_of(call, part)) ++stream->enqueuing;
    part.comm->launch = launch;
    library().launching[part.comm->location()].insert(part.comm);
    for (const auto& operation : part.operations) part.comm->begun.insert(operation->function);
    part.comm->state = ncclInProgress;
  }
  call.here.changed.notify_all();
  const bool blocking = launch->parts[0].comm->blocking;
  if (!blocking && call.here.issues_on_a_thread) issue_on_a_thread(launch);
  if (!blocking) return ncclInProgress;
  if (!call.here.wait(
          call.lock, [&] { return connected(call, *launch) && !stuck(call, *launch); }, call.name))
    return call.fail(ncclInternalError, "the other ranks did not come");
  issue(call, *launch);
  return ncclSuccess;
}

/// One rank: a copy, or a kernel for ncclRedOpCreatePreMulSum, at once, also within a group
/// (ncclLaunchOneRank in NCCL's onerank.cu).
ncclResult_t copy_alone(const NcclCall& call, Stream& stream,
                        const std::shared_ptr<Operation>& one) {
  if (one->in == one->out && one->how.op != ncclNumOps) return ncclSuccess;
  call.here.push(stream, {.run = [&here = call.here, one] { execute_alone(here, one); }},
                 touches_of(*one), text_of(*one));
  return ncclSuccess;
}

ncclResult_t add(const NcclCall& call, ncclComm_t handle, Operation wanted) {
  Comm* comm = call.comm(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  wanted.comm = comm;
  if (const auto result = planned(call, comm->device)) return call.fail(*result, "planned");
  if (faults_of(call, *comm).sticky != cudaSuccess)
    return call.fail(ncclUnhandledCudaError, "the device is broken");
  if (comm->life == Comm::Life::finalized)
    return call.wrong(ncclInvalidUsage, text_of(*comm) + " was finalized before");
  if (comm->state == ncclInProgress)
    return call.wrong(ncclInvalidArgument, text_of(*comm) +
                                               " is still ncclInProgress; ask "
                                               "ncclCommGetAsyncError first");
  if (faults_of(call, *comm).async_error != ncclSuccess)
    return call.fail(faults_of(call, *comm).async_error, "the communicator has failed");
  for (const Comm* other : library().launching[comm->location()]) {
    const bool let_off = call.here.messages_side_by_side &&
                         (is_pair(wanted.function) || only_messages(*other->launch)) &&
                         (comm->clique->connected.empty() || may_wait(*other->launch));
    if (other != comm && !let_off)
      call.wrong(ncclInvalidUsage, text_of(*comm) + " is used while the calls of " +
                                       text_of(*other) +
                                       " on the same device are still ncclInProgress");
  }
  auto& owner = library().in_group[comm->location()];
  const bool beside = call.here.messages_side_by_side && comm->clique->connected.empty();
  if (owner != std::thread::id{} && owner != std::this_thread::get_id() && !beside)
    call.wrong(ncclInvalidUsage,
               text_of(*comm) + " is used while another thread has an open group on its device");
  const int size = comm->clique->size;
  const bool needs_root = is_pair(wanted.function) || wanted.function == Function::reduce ||
                          wanted.function == Function::broadcast;
  if (needs_root && (wanted.root < 0 || wanted.root >= size))
    return call.wrong(ncclInvalidArgument,
                      fmt::format("root or peer {} of {} ranks", wanted.root, size));
  if (wanted.type < 0 || wanted.type >= ncclNumTypes)
    return call.wrong(ncclInvalidArgument, fmt::format("type {}", static_cast<int>(wanted.type)));
  if (wanted.how.op >= ncclNumOps) {
    const auto found = comm->reductions.find(wanted.how.op);
    if (found == comm->reductions.end())
      return call.wrong(ncclInvalidArgument,
                        fmt::format("reduction {} is not one of {}",
                                    static_cast<int>(wanted.how.op), text_of(*comm)));
    if (found->second.first != wanted.type)
      return call.wrong(
          ncclInvalidArgument,
          fmt::format("a reduction made for type {}, data of type {}",
                      static_cast<int>(found->second.first), static_cast<int>(wanted.type)));
    wanted.how = {ncclNumOps, found->second.second};
  }
  Stream* stream = call.here.stream(wanted.stream, comm->device, call.name);
  if (stream == nullptr) return ncclInvalidArgument;
  if (stream->device != comm->device)
    return call.wrong(ncclInvalidUsage,
                      fmt::format("{} on {}", text_of(*comm), call.here.name_of(*stream)));
  for (const Touch& touch : touches_of(wanted)) {
    if (touch.bytes == 0) continue;
    const Block* block = call.here.memory.find(touch.data);
    if (block == nullptr || block->freed || block->device != comm->device)
      return call.wrong(ncclInvalidArgument, "an address that is not memory of its device");
    const char* indirect = std::getenv("NCCL_P2P_DIRECT_DISABLE");
    if (size > 1 && call.here.version < NCCL_VERSION(2, 24, 0) && !block->of_nccl &&
        (indirect == nullptr || indirect != std::string_view("1")))
      call.wrong(
          ncclInvalidArgument,
          "before NCCL 2.24 a peer within the process uses an address of cudaMallocAsync, to "
          "which its device has no access");
  }
  if (!is_in_place_or_apart(wanted))
    call.wrong(ncclInvalidArgument,
               "input and output overlap, and are not in place: " + text_of(wanted));
  // NCCL drops collectives without elements.
  if (wanted.count == 0 && !is_pair(wanted.function)) return ncclSuccess;
  if (size == 1 && !is_pair(wanted.function))
    return copy_alone(call, *stream, std::make_shared<Operation>(std::move(wanted)));
  if (call.thread.group.size() >= most_grouped_calls)
    return call.wrong(ncclInvalidUsage, "too many calls in one group");
  call.thread.group.push_back({comm, std::make_shared<Operation>(std::move(wanted))});
  if (call.thread.group_depth == 0) return launch_group(call);
  owner = std::this_thread::get_id();
  return ncclSuccess;
}

/// A call between arrays; the caller adds what it has besides.
Operation operation(Function function, const void* in, void* out, std::size_t count,
                    ncclDataType_t type, cudaStream_t stream) {
  return {
      .function = function, .in = in, .out = out, .count = count, .type = type, .stream = stream};
}

ncclResult_t all_reduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  Operation wanted = operation(Function::all_reduce, in, out, count, type, stream);
  wanted.how = {op, {}};
  return add(NcclCall("ncclAllReduce"), comm, std::move(wanted));
}

ncclResult_t reduce_to(const void* in, void* out, std::size_t count, ncclDataType_t type,
                       ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  Operation wanted = operation(Function::reduce, in, out, count, type, stream);
  wanted.how = {op, {}};
  wanted.root = root;
  return add(NcclCall("ncclReduce"), comm, std::move(wanted));
}

ncclResult_t broadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root,
                       ncclComm_t comm, cudaStream_t stream) {
  Operation wanted = operation(Function::broadcast, in, out, count, type, stream);
  wanted.root = root;
  return add(NcclCall("ncclBroadcast"), comm, std::move(wanted));
}

ncclResult_t all_gather(const void* in, void* out, std::size_t count, ncclDataType_t type,
                        ncclComm_t comm, cudaStream_t stream) {
  return add(NcclCall("ncclAllGather"), comm,
             operation(Function::all_gather, in, out, count, type, stream));
}

ncclResult_t reduce_scatter(const void* in, void* out, std::size_t count, ncclDataType_t type,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  Operation wanted = operation(Function::reduce_scatter, in, out, count, type, stream);
  wanted.how = {op, {}};
  return add(NcclCall("ncclReduceScatter"), comm, std::move(wanted));
}

ncclResult_t send(const void* data, std::size_t count, ncclDataType_t type, int peer,
                  ncclComm_t comm, cudaStream_t stream) {
  Operation wanted = operation(Function::send, data, nullptr, count, type, stream);
  wanted.root = peer;
  return add(NcclCall("ncclSend"), comm, std::move(wanted));
}

ncclResult_t recv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  Operation wanted = operation(Function::recv, nullptr, data, count, type, stream);
  wanted.root = peer;
  return add(NcclCall("ncclRecv"), comm, std::move(wanted));
}

ncclResult_t group_start() {
  const NcclCall call("ncclGroupStart");
  ++call.thread.group_depth;
  return ncclSuccess;
}

ncclResult_t group_end() {
  const NcclCall call("ncclGroupEnd");
  if (call.thread.group_depth == 0)
    return call.wrong(ncclInvalidUsage, "there is no open group on this thread");
  if (--call.thread.group_depth != 0) return ncclSuccess;
  return launch_group(call);
}

}  // namespace

void replay(Machine& machine, const std::vector<std::shared_ptr<Operation>>& operations,
            Stream& stream) {
  Comm& comm = *operations[0]->comm;
  if (!comm.usable())
    return machine.violate(text_of(comm) + " has ended, and a graph with its calls is launched");
  std::vector<std::shared_ptr<Operation>> again;
  for (const auto& operation : operations) {
    again.push_back(std::make_shared<Operation>(*operation));
    again.back()->replayed = true;
    again.back()->stream = reinterpret_cast<cudaStream_t>(&stream);
  }
  Stream* on = &stream;
  put(machine, "cudaGraphLaunch", comm, std::move(again), {&on, 1});
}

void fill_operations(backend::nccl::NcclApi& table) {
  table.group_start = group_start;
  table.group_end = group_end;
  table.all_reduce = all_reduce;
  table.reduce = reduce_to;
  table.broadcast = broadcast;
  table.all_gather = all_gather;
  table.reduce_scatter = reduce_scatter;
  table.send = send;
  table.recv = recv;
}

}  // namespace tutti::test::nccl_double
