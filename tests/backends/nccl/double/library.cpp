// NCCL of the double: its texts, and its functions as a table.

#include "backends/nccl/double/library.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "backends/nccl/double/tables.hpp"

namespace tutti::test::nccl_double {

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

std::optional<ncclResult_t> planned(const NcclCall& call, int device) {
  return planned_failure(call.here, device, call.name);
}

const Faults& faults_of(const NcclCall& call, const Comm& comm) {
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

std::optional<ncclResult_t> planned_failure(Machine& machine, int device,
                                            const std::string& function) {
  Faults& faults = machine.devices[Machine::index(device)].faults;
  if (faults.fails != function) return std::nullopt;
  faults.fails.clear();
  return faults.with;
}

namespace {

ncclResult_t get_version(int* version) {
  const NcclCall call("ncclGetVersion");
  *version = call.here.version;
  return ncclSuccess;
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
  const NcclCall call("ncclGetLastError");
  return library().last_text;
}

}  // namespace

void fill_nccl_table(backend::nccl::NcclApi& table) {
  fill_operations(table);
  fill_communicators(table);
  fill_registration(table);
  table.get_version = get_version;
  table.get_error_string = get_error_string;
  table.get_last_error = get_last_error;
}

}  // namespace tutti::test::nccl_double
