// The operations of the double's NCCL: matches those of the ranks and moves the data.

#include "backends/nccl/double/clique.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace tutti::test::nccl_double {

namespace {

using Bytes = std::vector<std::byte>;

std::size_t bytes_of(const Operation& operation) {
  return operation.count * size_of(operation.type);
}

/// True if a fault blocks the operation of this rank.
bool is_blocked(const Machine& machine, const Operation& operation) {
  const Faults& faults = machine.devices[Machine::index(operation.comm->device)].faults;
  return faults.async_error != ncclSuccess || faults.sticky != cudaSuccess;
}

bool is_running(const Machine& machine, const std::shared_ptr<Operation>& operation) {
  if (operation == nullptr || is_blocked(machine, *operation)) return false;
  const auto kernel = operation->kernel.lock();
  return kernel != nullptr && kernel->started && !kernel->done;
}

Bytes read(const Machine& machine, const void* from, std::size_t bytes) {
  Bytes out(bytes);
  if (bytes != 0) std::memcpy(out.data(), machine.memory.bytes(from), bytes);
  return out;
}

void write(const Machine& machine, void* to, const Bytes& bytes, std::size_t offset = 0) {
  if (!bytes.empty()) std::memcpy(machine.memory.bytes(to) + offset, bytes.data(), bytes.size());
}

Bytes concat(const std::vector<Bytes>& parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Bytes input_of(const Machine& machine, const Operation& operation, std::size_t bytes) {
  return operation.misread ? *operation.misread : read(machine, operation.in, bytes);
}

/// Runs when all ranks have arrived. Reads everything before it writes.
void execute(const Machine& machine, const std::vector<std::shared_ptr<Operation>>& all) {
  const Operation& first = *all[0];
  const auto root = static_cast<std::size_t>(std::max(first.root, 0));
  const std::size_t bytes = bytes_of(first);
  std::vector<Bytes> inputs;
  std::vector<Reduction> how;
  for (const auto& one : all) {
    const bool reads = first.function != Function::broadcast || one == all[root];
    inputs.push_back(
        reads ? input_of(machine, *one,
                         first.function == Function::reduce_scatter ? bytes * all.size() : bytes)
              : Bytes{});
    how.push_back(one->how);
  }
  Bytes result;
  switch (first.function) {
    case Function::broadcast:
      for (const auto& one : all) write(machine, one->out, inputs[root]);
      return;
    case Function::all_gather:
      result = concat(inputs);
      for (const auto& one : all) write(machine, one->out, result);
      return;
    case Function::all_reduce:
      reduce(first.type, inputs, how, result);
      for (const auto& one : all) write(machine, one->out, result);
      return;
    case Function::reduce:
      reduce(first.type, inputs, how, result);
      write(machine, all[root]->out, result);
      return;
    case Function::reduce_scatter:
      reduce(first.type, inputs, how, result);
      for (std::size_t r = 0; r < all.size(); ++r) {
        const auto begin = result.begin() + static_cast<std::ptrdiff_t>(r * bytes);
        write(machine, all[r]->out, Bytes(begin, begin + static_cast<std::ptrdiff_t>(bytes)));
      }
      return;
    case Function::send:
    case Function::recv:
      return;
  }
}

bool step_collective(Machine& machine, const std::shared_ptr<Operation>& operation) {
  auto& waiting = operation->comm->clique->collectives;
  const auto found = waiting.find(operation->index);
  if (found == waiting.end()) return false;
  const auto& all = found->second;
  if (!std::ranges::all_of(all, [&](const auto& one) { return is_running(machine, one); }))
    return false;
  const bool wrong = std::ranges::any_of(all, [](const auto& one) { return one->wrong; });
  if (!wrong) execute(machine, all);
  for (const auto& one : all) one->done = true;
  waiting.erase(found);
  return true;
}

Clique::Pair pair_of(const Operation& operation) {
  const int rank = operation.comm->rank;
  return operation.function == Function::send ? Clique::Pair{rank, operation.root}
                                              : Clique::Pair{operation.root, rank};
}

bool step_pair(Machine& machine, const std::shared_ptr<Operation>& operation) {
  auto& sends = operation->comm->clique->sends[pair_of(*operation)];
  auto& receives = operation->comm->clique->receives[pair_of(*operation)];
  if (sends.empty() || receives.empty()) return false;
  const auto sent = sends.front();
  const auto received = receives.front();
  if (!is_running(machine, sent) || !is_running(machine, received)) return false;
  if (!sent->wrong) write(machine, received->out, read(machine, sent->in, bytes_of(*sent)));
  sent->done = true;
  received->done = true;
  sends.pop_front();
  receives.pop_front();
  return true;
}

}  // namespace

void execute_alone(const Machine& machine, const std::shared_ptr<Operation>& one) {
  execute(machine, {one});
}

int device_of(const Kernel& kernel) {
  return kernel.comm->device;
}

int copy_of(const Kernel& kernel) {
  return kernel.comm->copy;
}

bool step_operations(Machine& machine, Kernel& kernel) {
  bool moved = false;
  for (const auto& operation : kernel.operations)
    if (!operation->done)
      moved = (is_pair(operation->function) ? step_pair(machine, operation)
                                            : step_collective(machine, operation)) ||
              moved;
  if (std::ranges::all_of(kernel.operations, [](const auto& one) { return one->done; })) {
    kernel.done = true;
    moved = true;
  }
  return moved;
}

std::vector<Kernel*> waits_for(const Kernel& kernel) {
  std::vector<Kernel*> others;
  const auto add = [&](const std::shared_ptr<Operation>& operation) {
    if (operation == nullptr) return;
    const auto other = operation->kernel.lock();
    if (other != nullptr && other.get() != &kernel && !other->started)
      others.push_back(other.get());
  };
  if (!kernel.started) return machine().before(kernel);
  for (const auto& operation : kernel.operations) {
    if (operation->done) continue;
    const Clique& clique = *operation->comm->clique;
    if (!is_pair(operation->function)) {
      const auto found = clique.collectives.find(operation->index);
      if (found == clique.collectives.end()) continue;
      for (const auto& one : found->second) add(one);
      continue;
    }
    const auto& from = operation->function == Function::send ? clique.sends : clique.receives;
    const auto& to = operation->function == Function::send ? clique.receives : clique.sends;
    const auto mine = from.find(pair_of(*operation));
    const auto theirs = to.find(pair_of(*operation));
    if (mine == from.end() || theirs == to.end()) continue;
    const auto place = std::ranges::find(mine->second, operation) - mine->second.begin();
    if (static_cast<std::size_t>(place) < theirs->second.size())
      add(theirs->second[static_cast<std::size_t>(place)]);
  }
  return others;
}

}  // namespace tutti::test::nccl_double
