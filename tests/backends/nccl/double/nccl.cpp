// NCCL of the double: its functions, and what they ask of the caller.

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "backends/nccl/double/capture.hpp"
#include "backends/nccl/double/comm.hpp"
#include "backends/nccl/double/tables.hpp"

namespace tutti::test::nccl_double {

namespace {

/// How often a communicator says ncclInProgress after everything it waits for is there.
constexpr int polls = 2;
constexpr std::size_t most_grouped_calls = 2048;

struct Library {
  std::map<void*, std::unique_ptr<Comm>> comms;  ///< Dead ones too: a late call is noticed.
  std::map<std::string, std::shared_ptr<Clique>> cliques;  ///< By unique id.
  std::set<std::string> texts;  ///< Of ncclGetLastError; they live for ever.
  const char* last_text = "";
  int next_id = 0;
  std::uintptr_t next_handle = 0x1000;
  int next_reduction = ncclNumOps;
  std::map<int, std::thread::id> in_group;   ///< By device: whose open group has calls on it.
  std::map<int, std::set<Comm*>> launching;  ///< By device: those with calls under way.
};

Library& library() {
  static auto* const only = new Library;
  return *only;
}

std::string text_of(Function function) {
  constexpr std::array names{"ncclAllReduce",     "ncclReduce", "ncclBroadcast", "ncclAllGather",
                             "ncclReduceScatter", "ncclSend",   "ncclRecv"};
  return names[static_cast<std::size_t>(function)];
}

std::string text_of(const Comm& comm) {
  return fmt::format("communicator {} on rank {}", comm.clique->id, comm.rank);
}

std::string text_of(const Operation& operation) {
  std::string text = text_of(operation.function);
  if (!is_pair(operation.function)) text += fmt::format(" {}", operation.index);
  text +=
      fmt::format(" of {} elements of type {}", operation.count, static_cast<int>(operation.type));
  if (operation.root >= 0)
    text += fmt::format(", {} {}", is_pair(operation.function) ? "peer" : "root", operation.root);
  if (operation.function == Function::all_reduce || operation.function == Function::reduce ||
      operation.function == Function::reduce_scatter)
    text += fmt::format(", reduction {}", static_cast<int>(operation.how.op));
  return text + " on " + text_of(*operation.comm);
}

class Call {
 public:
  explicit Call(const char* called)
      : name(called), thread(this_thread()), here(machine()), lock(here.mutex) {
    ++here.calls[called];
  }

  ncclResult_t fail(ncclResult_t result, const std::string& why) const {
    library().last_text = library().texts.insert(fmt::format("{}: {}", name, why)).first->c_str();
    return result;
  }
  /// The caller's fault.
  ncclResult_t wrong(ncclResult_t result, const std::string& why) const {
    here.violate(fmt::format("{}: {}", name, why));
    return fail(result, why);
  }
  /// The communicator of a handle; null and a violation if it is none any more.
  Comm* comm(ncclComm_t handle) const {
    const auto found = library().comms.find(handle);
    if (found == library().comms.end()) {
      wrong(ncclInvalidArgument, "this is no communicator");
      return nullptr;
    }
    if (found->second->usable()) return found->second.get();
    wrong(ncclInvalidArgument,
          fmt::format("{} was {} before", text_of(*found->second),
                      found->second->life == Comm::Life::aborted ? "aborted" : "destroyed"));
    return nullptr;
  }

  const char* name;
  ThreadState& thread;
  Machine& here;
  mutable Lock lock;
};

std::optional<ncclResult_t> planned(const Call& call, int device) {
  return planned_failure(call.here, device, call.name);
}

const Faults& faults_of(const Call& call, const Comm& comm) {
  return call.here.devices[Machine::index(comm.device)].faults;
}

bool all_there(const Clique& clique) {
  return std::ranges::all_of(clique.members, [](const Comm* comm) {
    return comm != nullptr && (comm->usable() || comm->ready);
  });
}

void* remember(Comm& comm, const RegisteredMemory& memory) {
  auto* handle = reinterpret_cast<void*>(++library().next_handle);  // NOLINT
  comm.registered[handle] = memory;
  return handle;
}

// Operations.

/// What an operation reads and writes on its rank.
std::vector<Touch> touches_of(const Operation& operation) {
  const std::size_t bytes = operation.count * size_of(operation.type);
  const auto size = static_cast<std::size_t>(operation.comm->clique->size);
  const bool at_root = operation.comm->rank == operation.root;
  const Touch in{operation.in, bytes, false};
  const Touch out{operation.out, bytes, true};
  switch (operation.function) {
    case Function::all_reduce:
      return {in, out};
    case Function::reduce:
      return at_root ? std::vector{in, out} : std::vector{in};
    case Function::broadcast:
      return at_root ? std::vector{in, out} : std::vector{out};
    case Function::all_gather:
      return {in, {operation.out, bytes * size, true}};
    case Function::reduce_scatter:
      return {{operation.in, bytes * size, false}, out};
    case Function::send:
      return {in};
    case Function::recv:
      return {out};
  }
  return {};
}

bool overlap(const Touch& a, const Touch& b) {
  const auto* x = static_cast<const std::byte*>(a.data);
  const auto* y = static_cast<const std::byte*>(b.data);
  return x < y + b.bytes && y < x + a.bytes;
}

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

bool matches(const Operation& a, const Operation& b) {
  return a.function == b.function && a.count == b.count && a.type == b.type &&
         a.how.op == b.how.op && a.root == b.root && a.replayed == b.replayed;
}

/// Puts an operation among those of its clique, and compares it with its partners.
void enlist(Machine& here, const std::string& who, const std::shared_ptr<Operation>& operation) {
  Comm& comm = *operation->comm;
  Clique& clique = *comm.clique;
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
        compare(other, matches(*operation, *other));
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

std::vector<Stream*> streams_of(const Call& call, const Launch::Part& part) {
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
void issue(const Call& call, Launch& launch) {
  for (Launch::Part& part : launch.parts) {
    Comm& comm = *part.comm;
    const auto streams = streams_of(call, part);
    for (Stream* stream : streams) --stream->enqueuing;
    comm.launch = nullptr;
    library().launching[comm.device].erase(&comm);
    if (!comm.usable()) continue;
    comm.state = ncclSuccess;
    if (!streams.empty() && streams[0]->capture != nullptr)
      keep(*streams[0], {.what = "a group of NCCL", .operations = std::move(part.operations)});
    else
      put(call.here, call.name, comm, std::move(part.operations), streams);
  }
}

/// Ranks connect when all have come to the first operation, or to the first of the same function.
bool connected(const Call& call, const Launch& launch) {
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

bool stuck(const Call& call, const Launch& launch) {
  return std::ranges::any_of(launch.parts, [&](const Launch::Part& part) {
    return faults_of(call, *part.comm).stays_in_progress;
  });
}

/// Ends a window's registration once all ranks have come to it.
void advance_window(const Call& call, Comm& comm) {
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

/// Looks whether a communicator has got further.
void advance(const Call& call, Comm& comm) {
  if (comm.state != ncclInProgress) return;
  if (!comm.ready) {
    if (!all_there(*comm.clique) || faults_of(call, comm).init_hangs || comm.polls_left-- > 0)
      return;
    comm.ready = true;
    comm.state = ncclSuccess;
  } else if (comm.launch != nullptr) {
    const auto launch = comm.launch;
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
    if (quiet && all && !faults_of(call, comm).finalize_hangs) comm.state = ncclSuccess;
  }
}

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

/// The end of the outermost group.
ncclResult_t launch_group(const Call& call) {
  auto launch = std::make_shared<Launch>();
  launch->polls_left = polls;
  for (GroupedCall& grouped : std::exchange(call.thread.group, {})) {
    auto part = std::ranges::find(launch->parts, grouped.comm, &Launch::Part::comm);
    if (part == launch->parts.end())
      part = launch->parts.insert(part, Launch::Part{grouped.comm, {}});
    part->operations.push_back(std::move(grouped.operation));
  }
  for (auto& [device, owner] : library().in_group)
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
  for (const Launch::Part& part : launch->parts) {
    for (Stream* stream : streams_of(call, part)) ++stream->enqueuing;
    part.comm->launch = launch;
    library().launching[part.comm->device].insert(part.comm);
    for (const auto& operation : part.operations) part.comm->begun.insert(operation->function);
    part.comm->state = ncclInProgress;
  }
  call.here.changed.notify_all();
  if (!launch->parts[0].comm->blocking) return ncclInProgress;
  if (!call.here.wait(
          call.lock, [&] { return connected(call, *launch) && !stuck(call, *launch); }, call.name))
    return call.fail(ncclInternalError, "the other ranks did not come");
  issue(call, *launch);
  return ncclSuccess;
}

ncclResult_t add(const Call& call, ncclComm_t handle, Operation wanted) {
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
  for (const Comm* other : library().launching[comm->device]) {
    const bool let_off = call.here.messages_side_by_side &&
                         (is_pair(wanted.function) || only_messages(*other->launch));
    if (other != comm && !let_off)
      call.wrong(ncclInvalidUsage, text_of(*comm) + " is used while the calls of " +
                                       text_of(*other) +
                                       " on the same device are still ncclInProgress");
  }
  auto& owner = library().in_group[comm->device];
  const bool beside = call.here.messages_side_by_side && is_pair(wanted.function);
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
  }
  if (!is_in_place_or_apart(wanted))
    call.wrong(ncclInvalidArgument,
               "input and output overlap, and are not in place: " + text_of(wanted));
  // NCCL drops collectives without elements.
  if (wanted.count == 0 && !is_pair(wanted.function)) return ncclSuccess;
  if (call.thread.group.size() >= most_grouped_calls)
    return call.wrong(ncclInvalidUsage, "too many calls in one group");
  call.thread.group.push_back({comm, std::make_shared<Operation>(std::move(wanted))});
  if (call.thread.group_depth == 0) return launch_group(call);
  owner = std::this_thread::get_id();
  return ncclSuccess;
}

ncclResult_t all_reduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return add(Call("ncclAllReduce"), comm,
             {.function = Function::all_reduce,
              .in = in,
              .out = out,
              .count = count,
              .type = type,
              .how = {op, {}},
              .stream = stream});
}

ncclResult_t reduce_to(const void* in, void* out, std::size_t count, ncclDataType_t type,
                       ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return add(Call("ncclReduce"), comm,
             {.function = Function::reduce,
              .in = in,
              .out = out,
              .count = count,
              .type = type,
              .how = {op, {}},
              .root = root,
              .stream = stream});
}

ncclResult_t broadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root,
                       ncclComm_t comm, cudaStream_t stream) {
  return add(Call("ncclBroadcast"), comm,
             {.function = Function::broadcast,
              .in = in,
              .out = out,
              .count = count,
              .type = type,
              .root = root,
              .stream = stream});
}

ncclResult_t all_gather(const void* in, void* out, std::size_t count, ncclDataType_t type,
                        ncclComm_t comm, cudaStream_t stream) {
  return add(Call("ncclAllGather"), comm,
             {.function = Function::all_gather,
              .in = in,
              .out = out,
              .count = count,
              .type = type,
              .stream = stream});
}

ncclResult_t reduce_scatter(const void* in, void* out, std::size_t count, ncclDataType_t type,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return add(Call("ncclReduceScatter"), comm,
             {.function = Function::reduce_scatter,
              .in = in,
              .out = out,
              .count = count,
              .type = type,
              .how = {op, {}},
              .stream = stream});
}

ncclResult_t send(const void* data, std::size_t count, ncclDataType_t type, int peer,
                  ncclComm_t comm, cudaStream_t stream) {
  return add(Call("ncclSend"), comm,
             {.function = Function::send,
              .in = data,
              .count = count,
              .type = type,
              .root = peer,
              .stream = stream});
}

ncclResult_t recv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return add(Call("ncclRecv"), comm,
             {.function = Function::recv,
              .out = data,
              .count = count,
              .type = type,
              .root = peer,
              .stream = stream});
}

ncclResult_t group_start() {
  const Call call("ncclGroupStart");
  ++call.thread.group_depth;
  return ncclSuccess;
}

ncclResult_t group_end() {
  const Call call("ncclGroupEnd");
  if (call.thread.group_depth == 0)
    return call.wrong(ncclInvalidUsage, "there is no open group on this thread");
  if (--call.thread.group_depth != 0) return ncclSuccess;
  return launch_group(call);
}

// Communicators.

ncclResult_t get_version(int* version) {
  const Call call("ncclGetVersion");
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  const Call call("ncclGetUniqueId");
  if (const auto result = planned(call, call.thread.device)) return call.fail(*result, "planned");
  std::memset(id->internal, 0, sizeof id->internal);
  const std::string text = fmt::format("#{}", library().next_id++);
  std::ranges::copy(text, id->internal);
  library().cliques[text] = nullptr;
  return ncclSuccess;
}

ncclResult_t comm_init_rank_config(ncclComm_t* handle, int size, ncclUniqueId id, int rank,
                                   ncclConfig_t* config) {
  Call call("ncclCommInitRankConfig");
  *handle = nullptr;
  if (const auto result = planned(call, call.thread.device)) return call.fail(*result, "planned");
  if (call.thread.group_depth != 0)
    return call.wrong(ncclInvalidUsage, "the double has no communicators made in a group");
  if (config != nullptr && (config->magic != 0xcafebeef || config->size != sizeof(ncclConfig_t)))
    return call.wrong(ncclInvalidArgument, "the config is not from NCCL_CONFIG_INITIALIZER");
  if (size < 1 || rank < 0 || rank >= size)
    return call.wrong(ncclInvalidArgument, fmt::format("rank {} of {}", rank, size));
  const std::string text(id.internal, strnlen(id.internal, sizeof id.internal));
  const auto found = library().cliques.find(text);
  if (found == library().cliques.end())
    return call.wrong(ncclInvalidArgument, "the unique id is not from ncclGetUniqueId");
  if (found->second == nullptr) {
    found->second = std::make_shared<Clique>();
    found->second->id = text;
    found->second->size = size;
    found->second->members.resize(Machine::index(size));
  }
  Clique& clique = *found->second;
  const int device = call.thread.device;
  if (clique.size != size)
    return call.wrong(ncclInvalidArgument,
                      fmt::format("{} ranks here, {} on another rank", size, clique.size));
  if (clique.members[Machine::index(rank)] != nullptr)
    return call.wrong(ncclInvalidUsage,
                      fmt::format("rank {} of id {} is taken: an id serves once", rank, text));
  for (const Comm* other : clique.members)
    if (other != nullptr && other->device == device)
      return call.wrong(ncclInvalidUsage, fmt::format("ranks {} and {} are both on device {}",
                                                      other->rank, rank, device));
  auto made = std::make_unique<Comm>();
  Comm& comm = *made;
  comm.clique = found->second;
  comm.rank = rank;
  comm.device = device;
  comm.blocking = config == nullptr || config->blocking != 0;
  comm.polls_left = polls;
  clique.members[Machine::index(rank)] = &comm;
  library().comms[&comm] = std::move(made);
  *handle = reinterpret_cast<ncclComm_t>(&comm);
  call.here.changed.notify_all();
  if (!comm.blocking) return ncclInProgress;
  if (!call.here.wait(
          call.lock, [&] { return all_there(clique) && !faults_of(call, comm).init_hangs; },
          call.name))
    return call.fail(ncclInternalError, "the other ranks did not come");
  comm.ready = true;
  comm.state = ncclSuccess;
  return ncclSuccess;
}

/// What a communicator says about itself, once it is ready.
ncclResult_t tell(const Call& call, ncclComm_t handle, int* value, int Comm::*what) {
  const Comm* comm = call.comm(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  if (comm->state == ncclInProgress)
    return call.wrong(ncclInvalidArgument, text_of(*comm) + " is still ncclInProgress");
  *value = what == nullptr ? comm->clique->size : comm->*what;
  return ncclSuccess;
}
ncclResult_t comm_count(const ncclComm_t comm, int* count) {
  return tell(Call("ncclCommCount"), comm, count, nullptr);
}
ncclResult_t comm_user_rank(const ncclComm_t comm, int* rank) {
  return tell(Call("ncclCommUserRank"), comm, rank, &Comm::rank);
}
ncclResult_t comm_cu_device(const ncclComm_t comm, int* device) {
  return tell(Call("ncclCommCuDevice"), comm, device, &Comm::device);
}

ncclResult_t comm_get_async_error(ncclComm_t handle, ncclResult_t* state) {
  const Call call("ncclCommGetAsyncError");
  Comm* comm = call.comm(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  call.here.progress();
  advance(call, *comm);
  *state = comm->state;
  const Faults& faults = faults_of(call, *comm);
  if (faults.async_error != ncclSuccess) {
    *state = faults.async_error;
    call.fail(*state, "the network of the double is down");
  }
  return ncclSuccess;
}

/// Takes a communicator's kernels off the device; peers wait for them in vain.
void drop_work(Machine& here, Comm& comm) {
  if (comm.launch != nullptr) {
    const auto launch = std::exchange(comm.launch, nullptr);
    library().launching[comm.device].erase(&comm);
    for (const Launch::Part& part : launch->parts) {
      if (part.comm != &comm) continue;
      std::set<Stream*> streams;
      for (const auto& operation : part.operations)
        if (Stream* stream = here.stream(operation->stream, comm.device, "ncclCommAbort"))
          streams.insert(stream);
      for (Stream* stream : streams) --stream->enqueuing;
    }
    std::erase_if(launch->parts, [&](const Launch::Part& part) { return part.comm == &comm; });
  }
  for (const auto& kernel : here.devices[Machine::index(comm.device)].engine)
    if (kernel->comm == &comm) kernel->done = true;
  here.observe(comm.device, comm.clock);  // Its kernels have ended, one way or the other.
  Clique& clique = *comm.clique;
  for (auto& [number, all] : clique.collectives) all[Machine::index(comm.rank)] = nullptr;
  const auto mine = [&](const auto& operation) { return operation->comm == &comm; };
  for (auto* pairs : {&clique.sends, &clique.receives})
    for (auto& [pair, operations] : *pairs) std::erase_if(operations, mine);
  here.changed.notify_all();
}

bool in_foreign_group(const Call& call, const Comm& comm) {
  return std::ranges::any_of(call.here.threads, [&](const ThreadState* thread) {
    return thread != &call.thread &&
           std::ranges::any_of(thread->group,
                               [&](const GroupedCall& one) { return one.comm == &comm; });
  });
}

ncclResult_t comm_abort(ncclComm_t handle) {
  const Call call("ncclCommAbort");
  Comm* comm = call.comm(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  if (in_foreign_group(call, *comm))
    call.wrong(ncclInvalidUsage, "another thread is within a group of " + text_of(*comm));
  if (call.thread.group_depth != 0) call.wrong(ncclInvalidUsage, "within an open group");
  comm->life = Comm::Life::aborted;
  comm->window.reset();
  drop_work(call.here, *comm);
  call.here.progress();
  call.here.wait(
      call.lock, [&] { return !faults_of(call, *comm).abort_hangs; }, call.name);
  return ncclSuccess;
}

ncclResult_t comm_finalize(ncclComm_t handle) {
  const Call call("ncclCommFinalize");
  Comm* comm = call.comm(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  if (const auto result = planned(call, comm->device)) return call.fail(*result, "planned");
  if (comm->life == Comm::Life::finalized)
    return call.wrong(ncclInvalidArgument, text_of(*comm) + " was finalized before");
  if (comm->state == ncclInProgress)
    return call.wrong(ncclInvalidArgument, text_of(*comm) + " is still ncclInProgress");
  comm->life = Comm::Life::finalized;
  comm->state = ncclInProgress;
  call.here.changed.notify_all();
  if (!comm->blocking) return ncclInProgress;
  const bool ended = call.here.wait(
      call.lock,
      [&] {
        advance(call, *comm);
        return comm->state == ncclSuccess;
      },
      call.name);
  return ended ? ncclSuccess : call.fail(ncclInternalError, "the other ranks do not finalize");
}

ncclResult_t comm_destroy(ncclComm_t handle) {
  const Call call("ncclCommDestroy");
  Comm* comm = call.comm(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  if (call.thread.group_depth != 0) call.wrong(ncclInvalidUsage, "within an open group");
  if (comm->state == ncclInProgress)
    return call.wrong(ncclInvalidArgument, text_of(*comm) + " is still ncclInProgress");
  if (faults_of(call, *comm).async_error != ncclSuccess)
    return call.wrong(ncclInvalidUsage,
                      text_of(*comm) + " has an error: it has to be aborted, not destroyed");
  if (comm->life == Comm::Life::alive) {  // It finalizes first, which waits for the peers.
    comm->life = Comm::Life::finalized;
    comm->state = ncclInProgress;
    call.here.wait(
        call.lock,
        [&] {
          advance(call, *comm);
          return comm->state == ncclSuccess;
        },
        call.name);
  }
  comm->life = Comm::Life::destroyed;
  drop_work(call.here, *comm);
  return ncclSuccess;
}

ncclResult_t red_op_create_pre_mul_sum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                       ncclScalarResidence_t residence, ncclComm_t handle) {
  const Call call("ncclRedOpCreatePreMulSum");
  Comm* comm = call.comm(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  if (comm->state == ncclInProgress)
    return call.wrong(ncclInvalidArgument, text_of(*comm) + " is still ncclInProgress");
  if (residence != ncclScalarHostImmediate)
    return call.wrong(ncclInvalidArgument, "the double reads the scalar on the host");
  if (call.here.memory.is_device_address(scalar))
    return call.wrong(ncclInvalidArgument, "ncclScalarHostImmediate of memory of a device");
  const int number = library().next_reduction++;
  auto& made = comm->reductions[number];
  made.first = type;
  std::memcpy(made.second.data(), scalar, size_of(type));
  *op = static_cast<ncclRedOp_t>(number);
  return ncclSuccess;
}

ncclResult_t red_op_destroy(ncclRedOp_t op, ncclComm_t handle) {
  const Call call("ncclRedOpDestroy");
  Comm* comm = call.comm(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  if (comm->reductions.erase(static_cast<int>(op)) == 0)
    return call.wrong(ncclInvalidArgument, fmt::format("reduction {} is not one of {}",
                                                       static_cast<int>(op), text_of(*comm)));
  return ncclSuccess;
}

// Memory.

ncclResult_t mem_alloc(void** data, std::size_t bytes) {
  const Call call("ncclMemAlloc");
  const int device = call.thread.device;
  *data = nullptr;
  if (const auto result = planned(call, device)) return call.fail(*result, "planned");
  if (bytes == 0) return call.wrong(ncclInvalidArgument, "0 bytes");
  // Whole pages, however much is asked for: a window has to begin at one.
  constexpr std::size_t page = 4096;
  void* block = call.here.memory.allocate(device, bytes + page);
  if (block == nullptr) return call.fail(ncclUnhandledCudaError, "out of memory");
  call.here.memory.find(block)->of_nccl = true;
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  *data = static_cast<std::byte*>(block) + (page - address % page) % page;
  return ncclSuccess;
}

ncclResult_t mem_free(void* data) {
  const Call call("ncclMemFree");
  Block* block = call.here.memory.find(data);
  if (block == nullptr || !block->of_nccl || block->freed)
    return call.wrong(ncclInvalidArgument, "this is no memory of ncclMemAlloc");
  call.here.progress();
  const Device& device = call.here.devices[Machine::index(block->device)];
  for (const Access& access : block->accesses)
    if (device.host.at(access.lane) < access.epoch) {
      call.here.violate(fmt::format("ncclMemFree of what {} uses, and the host has not seen it end",
                                    access.what));
      break;
    }
  check_not_registered(call.here, *block, call.name);
  std::memset(call.here.memory.bytes(reinterpret_cast<void*>(block->base)),  // NOLINT
              DeviceMemory::freed, block->bytes);
  block->freed = true;
  call.here.memory.retire(*block);
  return ncclSuccess;
}

/// The communicator, if this memory may be registered with it now.
Comm* registering(const Call& call, ncclComm_t handle, const void* data, std::size_t bytes,
                  ncclResult_t& result) {
  result = ncclInvalidArgument;
  Comm* comm = call.comm(handle);
  if (comm == nullptr) return nullptr;
  const auto wrong = [&](const std::string& why) {
    call.wrong(result, text_of(*comm) + why);
    return nullptr;
  };
  if (comm->state == ncclInProgress) return wrong(" is still ncclInProgress");
  if (comm->life == Comm::Life::finalized) return wrong(" was finalized before");
  const Block* block = call.here.memory.find(data);
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (block == nullptr || block->freed || block->device != comm->device || bytes == 0 ||
      address + bytes > block->base + block->bytes)
    return wrong(" gets memory that is none of its device");
  if (const auto planned_result = planned(call, comm->device)) {
    result = call.fail(*planned_result, "planned");
    return nullptr;
  }
  return comm;
}

ncclResult_t comm_register(ncclComm_t handle, void* data, std::size_t bytes, void** registered) {
  const Call call("ncclCommRegister");
  *registered = nullptr;
  ncclResult_t result = ncclSuccess;
  Comm* comm = registering(call, handle, data, bytes, result);
  if (comm == nullptr) return result;
  if (call.here.registers_buffers)
    *registered = remember(*comm, {static_cast<const std::byte*>(data), bytes, false});
  return ncclSuccess;
}

ncclResult_t comm_window_register(ncclComm_t handle, void* data, std::size_t bytes, void** window,
                                  int flags) {
  Call call("ncclCommWindowRegister");
  *window = nullptr;
  ncclResult_t result = ncclSuccess;
  Comm* comm = registering(call, handle, data, bytes, result);
  if (comm == nullptr) return result;
  if (!call.here.has_windows) return ncclSuccess;
  if (!call.here.memory.find(data)->of_nccl)
    return call.wrong(ncclUnhandledCudaError, "a window of memory that is not ncclMemAlloc's");
  if (reinterpret_cast<std::uintptr_t>(data) % 4096 != 0)
    return call.wrong(ncclInvalidArgument, "a window that does not begin at a page");
  const WindowCall mine{{static_cast<const std::byte*>(data), bytes, true}, flags, window};
  comm->clique->windows[comm->windows++][comm->rank] = mine;
  comm->window = mine;
  comm->state = ncclInProgress;
  comm->polls_left = polls;
  call.here.changed.notify_all();
  if (!comm->blocking) return ncclInProgress;
  call.here.wait(
      call.lock,
      [&] {
        advance(call, *comm);
        return comm->state != ncclInProgress;
      },
      call.name);
  return comm->state;
}

/// Ends a registration of this kind; its kernels must not use it any more.
ncclResult_t deregister(const Call& call, ncclComm_t handle, void* registered, bool window) {
  Comm* comm = call.comm(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  if (registered == nullptr) return ncclSuccess;
  if (const auto result = planned(call, comm->device)) return call.fail(*result, "planned");
  if (comm->state == ncclInProgress)
    return call.wrong(ncclInvalidArgument, text_of(*comm) + " is still ncclInProgress");
  const auto found = comm->registered.find(registered);
  if (found == comm->registered.end() || found->second.window != window)
    return call.wrong(ncclInvalidUsage, "this is no such handle of " + text_of(*comm));
  call.here.progress();
  const RegisteredMemory& memory = found->second;
  for (const auto& kernel : call.here.devices[Machine::index(comm->device)].engine) {
    if (kernel->comm != comm || kernel->done) continue;
    for (const auto& operation : kernel->operations)
      for (const Touch& touch : touches_of(*operation))
        if (overlap(touch, {memory.data, memory.bytes, true}))
          call.here.violate(fmt::format("{}: {} uses the memory", call.name, kernel->what));
  }
  comm->registered.erase(found);
  return ncclSuccess;
}
ncclResult_t comm_deregister(ncclComm_t comm, void* handle) {
  return deregister(Call("ncclCommDeregister"), comm, handle, false);
}
ncclResult_t comm_window_deregister(ncclComm_t comm, void* window) {
  return deregister(Call("ncclCommWindowDeregister"), comm, window, true);
}

const char* get_error_string(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error of the double";
    case ncclSystemError:
      return "system error of the double";
    case ncclInternalError:
      return "internal error of the double";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote error of the double";
    case ncclInProgress:
      return "in progress";
    default:
      return "no such result";
  }
}

const char* get_last_error(ncclComm_t) {
  const Call call("ncclGetLastError");
  return library().last_text;
}

}  // namespace

std::optional<ncclResult_t> planned_failure(Machine& machine, int device,
                                            const std::string& function) {
  Faults& faults = machine.devices[Machine::index(device)].faults;
  if (faults.fails != function) return std::nullopt;
  faults.fails.clear();
  return faults.with;
}

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

void check_not_registered(Machine& machine, const Block& block, const std::string& who) {
  for (const auto& [key, comm] : library().comms) {
    if (!comm->usable()) continue;
    for (const auto& [handle, memory] : comm->registered) {
      const auto begin = reinterpret_cast<std::uintptr_t>(memory.data);
      if (begin < block.base + block.bytes && block.base < begin + memory.bytes)
        machine.violate(
            fmt::format("{} of memory that is registered with {}", who, text_of(*comm)));
    }
  }
}

bool has_communicators() {
  return std::ranges::any_of(library().comms, [](const auto& one) { return one.second->usable(); });
}

void check_communicators(Machine& machine) {
  std::set<Clique*> seen;
  for (auto& [key, comm] : library().comms) {
    seen.insert(comm->clique.get());
    if (comm->usable())
      machine.violate(text_of(*comm) + " was neither destroyed nor aborted");
    else if (!comm->reductions.empty() && comm->life == Comm::Life::destroyed)
      machine.violate(text_of(*comm) + " was destroyed with reductions that were not");
    if (!comm->registered.empty() && comm->life == Comm::Life::destroyed)
      machine.violate(text_of(*comm) + " was destroyed with memory registered");
  }
  for (const Clique* clique : seen) {
    const Comm* aborted = nullptr;
    const Comm* alive = nullptr;
    for (const Comm* comm : clique->members) {
      if (comm == nullptr) continue;
      if (comm->life == Comm::Life::aborted) aborted = comm;
      if (comm->usable()) alive = comm;
    }
    if (aborted != nullptr && alive != nullptr)
      machine.violate(text_of(*aborted) + " was aborted, and " + text_of(*alive) + " was not");
  }
  for (auto& [key, comm] : library().comms)
    if (comm->usable()) {
      comm->life = Comm::Life::aborted;
      drop_work(machine, *comm);
    }
  for (auto& [key, comm] : library().comms) {
    comm->reductions.clear();
    comm->registered.clear();
  }
  machine.progress();
}

void fill_nccl_table(backend::nccl::NcclApi& table) {
  table.get_version = get_version;
  table.get_unique_id = get_unique_id;
  table.comm_init_rank_config = comm_init_rank_config;
  table.comm_count = comm_count;
  table.comm_user_rank = comm_user_rank;
  table.comm_cu_device = comm_cu_device;
  table.comm_get_async_error = comm_get_async_error;
  table.comm_abort = comm_abort;
  table.comm_finalize = comm_finalize;
  table.comm_destroy = comm_destroy;
  table.group_start = group_start;
  table.group_end = group_end;
  table.all_reduce = all_reduce;
  table.reduce = reduce_to;
  table.broadcast = broadcast;
  table.all_gather = all_gather;
  table.reduce_scatter = reduce_scatter;
  table.send = send;
  table.recv = recv;
  table.red_op_create_pre_mul_sum = red_op_create_pre_mul_sum;
  table.red_op_destroy = red_op_destroy;
  table.mem_alloc = mem_alloc;
  table.mem_free = mem_free;
  table.comm_register = comm_register;
  table.comm_deregister = comm_deregister;
  table.comm_window_register = comm_window_register;
  table.comm_window_deregister = comm_window_deregister;
  table.get_error_string = get_error_string;
  table.get_last_error = get_last_error;
}

}  // namespace tutti::test::nccl_double
