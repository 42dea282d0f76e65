// Memory of NCCL in the double, and memory registered with communicators.

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "backends/nccl/double/library.hpp"

namespace tutti::test::nccl_double {

namespace {

constexpr std::size_t window_page = 4096;

/// The first page at or after an address: a window has to begin at a page.
std::byte* first_page(std::uintptr_t address) {
  return reinterpret_cast<std::byte*>((address + window_page - 1) / window_page *
                                      window_page);  // NOLINT
}

ncclResult_t mem_alloc(void** data, std::size_t bytes) {
  const NcclCall call("ncclMemAlloc");
  const int device = call.thread.device;
  *data = nullptr;
  if (const auto result = planned(call, device)) return call.fail(*result, "planned");
  if (bytes == 0) return call.wrong(ncclInvalidArgument, "0 bytes");
  void* block = call.here.memory.allocate(device, bytes + window_page);
  if (block == nullptr) return call.fail(ncclUnhandledCudaError, "out of memory");
  call.here.memory.find(block)->of_nccl = true;
  *data = first_page(reinterpret_cast<std::uintptr_t>(block));
  return ncclSuccess;
}

ncclResult_t mem_free(void* data) {
  const NcclCall call("ncclMemFree");
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
Comm* registering(const NcclCall& call, ncclComm_t handle, const void* data, std::size_t bytes,
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
  const NcclCall call("ncclCommRegister");
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
  NcclCall call("ncclCommWindowRegister");
  *window = nullptr;
  ncclResult_t result = ncclSuccess;
  Comm* comm = registering(call, handle, data, bytes, result);
  if (comm == nullptr) return result;
  if (!call.here.has_windows) {
    if (call.here.version < NCCL_VERSION(2, 29, 2))  // ncclDevrWindowRegisterInGroup.
      *window = remember(*comm, {static_cast<const std::byte*>(data), bytes, true});
    return ncclSuccess;
  }
  if (!call.here.memory.find(data)->of_nccl)
    return call.wrong(ncclUnhandledCudaError, "a window of memory that is not ncclMemAlloc's");
  if (reinterpret_cast<std::uintptr_t>(data) % window_page != 0)
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
ncclResult_t deregister(const NcclCall& call, ncclComm_t handle, void* registered, bool window) {
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
  return deregister(NcclCall("ncclCommDeregister"), comm, handle, false);
}
ncclResult_t comm_window_deregister(ncclComm_t comm, void* window) {
  return deregister(NcclCall("ncclCommWindowDeregister"), comm, window, true);
}

}  // namespace

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

void misread_windows(Machine& here, Operation& operation) {
  operation.misread.reset();
  const auto function = operation.function;
  if (function != Function::all_reduce && function != Function::all_gather &&
      function != Function::reduce_scatter)
    return;
  const auto window_of = [&](const Touch& touch) -> const RegisteredMemory* {
    for (const auto& [handle, memory] : operation.comm->registered) {
      const auto* begin = static_cast<const std::byte*>(touch.data);
      if (memory.window && begin >= memory.data &&
          begin + touch.bytes <= memory.data + memory.bytes)
        return &memory;
    }
    return nullptr;
  };
  const auto touches = touches_of(operation);
  if (std::ranges::any_of(touches, [&](const Touch& one) { return window_of(one) == nullptr; }))
    return;
  const Touch& read = touches.front();
  const auto* from = static_cast<const std::byte*>(read.data);
  bool wrong = here.version >= NCCL_VERSION(2, 28, 0) && here.version < NCCL_VERSION(2, 30, 7);
  if (here.version < NCCL_VERSION(2, 31, 2)) {
    const auto* window = window_of(read)->data;
    const auto offset = window - first_page(here.memory.find(window)->base);
    from -= offset;
    wrong = wrong || offset != 0;
  }
  if (!wrong) return;
  const std::byte* bytes = here.memory.bytes(from);
  operation.misread.emplace(bytes, bytes + read.bytes);
}

void fill_registration(backend::nccl::NcclApi& table) {
  table.mem_alloc = mem_alloc;
  table.mem_free = mem_free;
  table.comm_register = comm_register;
  table.comm_deregister = comm_deregister;
  table.comm_window_register = comm_window_register;
  table.comm_window_deregister = comm_window_deregister;
}

}  // namespace tutti::test::nccl_double
