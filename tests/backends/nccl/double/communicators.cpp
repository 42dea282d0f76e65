// Communicators of the double, from their ids to their ends, and custom reductions.

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "backends/nccl/double/library.hpp"

namespace tutti::test::nccl_double {

namespace {

ncclResult_t get_unique_id(ncclUniqueId* id) {
  const NcclCall call("ncclGetUniqueId");
  if (const auto result = planned(call, call.thread.device)) return call.fail(*result, "planned");
  std::memset(id->internal, 0, sizeof id->internal);
  const std::string text = fmt::format("#{}", library().next_id++);
  std::ranges::copy(text, id->internal);
  library().cliques[text] = nullptr;
  return ncclSuccess;
}

ncclResult_t comm_init_rank_config(ncclComm_t* handle, int size, ncclUniqueId id, int rank,
                                   ncclConfig_t* config) {
  NcclCall call("ncclCommInitRankConfig");
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
    if (other != nullptr && other->device == device && other->copy == call.thread.copy)
      return call.wrong(ncclInvalidUsage, fmt::format("ranks {} and {} are both on device {}",
                                                      other->rank, rank, device));
  auto made = std::make_unique<Comm>();
  Comm& comm = *made;
  comm.clique = found->second;
  comm.rank = rank;
  comm.device = device;
  comm.copy = call.thread.copy;
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

/// The properties of a communicator, once it is ready.
ncclResult_t tell(const NcclCall& call, ncclComm_t handle, int* value, int Comm::*what) {
  const Comm* comm = call.comm(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  if (comm->state == ncclInProgress)
    return call.wrong(ncclInvalidArgument, text_of(*comm) + " is still ncclInProgress");
  *value = what == nullptr ? comm->clique->size : comm->*what;
  return ncclSuccess;
}
ncclResult_t comm_count(const ncclComm_t comm, int* count) {
  return tell(NcclCall("ncclCommCount"), comm, count, nullptr);
}
ncclResult_t comm_user_rank(const ncclComm_t comm, int* rank) {
  return tell(NcclCall("ncclCommUserRank"), comm, rank, &Comm::rank);
}
ncclResult_t comm_cu_device(const ncclComm_t comm, int* device) {
  return tell(NcclCall("ncclCommCuDevice"), comm, device, &Comm::device);
}

ncclResult_t comm_get_async_error(ncclComm_t handle, ncclResult_t* state) {
  const NcclCall call("ncclCommGetAsyncError");
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
    library().launching[comm.location()].erase(&comm);
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

bool in_foreign_group(const NcclCall& call, const Comm& comm) {
  return std::ranges::any_of(call.here.threads, [&](const ThreadState* thread) {
    return thread != &call.thread &&
           std::ranges::any_of(thread->group,
                               [&](const GroupedCall& one) { return one.comm == &comm; });
  });
}

ncclResult_t comm_abort(ncclComm_t handle) {
  const NcclCall call("ncclCommAbort");
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
      call.lock, [&] { return !faults_of(call, *comm).abort_hangs && comm->graphs == 0; },
      call.name);
  return ncclSuccess;
}

ncclResult_t comm_finalize(ncclComm_t handle) {
  const NcclCall call("ncclCommFinalize");
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
  const NcclCall call("ncclCommDestroy");
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
  const NcclCall call("ncclRedOpCreatePreMulSum");
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
  const NcclCall call("ncclRedOpDestroy");
  Comm* comm = call.comm(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  if (comm->reductions.erase(static_cast<int>(op)) == 0)
    return call.wrong(ncclInvalidArgument, fmt::format("reduction {} is not one of {}",
                                                       static_cast<int>(op), text_of(*comm)));
  return ncclSuccess;
}

}  // namespace

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

void fill_communicators(backend::nccl::NcclApi& table) {
  table.get_unique_id = get_unique_id;
  table.comm_init_rank_config = comm_init_rank_config;
  table.comm_count = comm_count;
  table.comm_user_rank = comm_user_rank;
  table.comm_cu_device = comm_cu_device;
  table.comm_get_async_error = comm_get_async_error;
  table.comm_abort = comm_abort;
  table.comm_finalize = comm_finalize;
  table.comm_destroy = comm_destroy;
  table.red_op_create_pre_mul_sum = red_op_create_pre_mul_sum;
  table.red_op_destroy = red_op_destroy;
}

}  // namespace tutti::test::nccl_double
