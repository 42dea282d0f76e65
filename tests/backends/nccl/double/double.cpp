#include "backends/nccl/double/double.hpp"

#include <thread>
#include <utility>

#include "backends/nccl/double/machine.hpp"
#include "backends/nccl/double/tables.hpp"

namespace tutti::test::nccl_double {

backend::nccl::Apis apis() {
  static const auto cuda = [] {
    backend::nccl::CudaApi table;
    fill_cuda_table(table);
    return table;
  }();
  static const auto nccl = [] {
    backend::nccl::NcclApi table;
    fill_nccl_table(table);
    return table;
  }();
  static const auto driver = [] {
    backend::nccl::DriverApi table;
    fill_driver_table(table);
    return table;
  }();
  return {&nccl, &cuda, &driver, kernel_image()};
}

namespace {

template <int Copy>
ncclResult_t init_in_copy(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                          ncclConfig_t* config) {
  this_thread().copy = Copy;
  const auto result = apis().nccl->comm_init_rank_config(comm, size, id, rank, config);
  this_thread().copy = 0;
  return result;
}

template <int... Copy>
std::vector<backend::nccl::NcclApi> tables_of_copies(std::integer_sequence<int, Copy...>) {
  std::vector<backend::nccl::NcclApi> tables(sizeof...(Copy), *apis().nccl);
  (..., (tables[Copy].comm_init_rank_config = init_in_copy<Copy>));
  return tables;
}

}  // namespace

const backend::nccl::NcclApi& nccl_copy(int copy) {
  static const auto tables = tables_of_copies(std::make_integer_sequence<int, device_count>());
  return tables.at(static_cast<std::size_t>(copy));
}

std::vector<std::string> take_violations() {
  const Lock lock(machine().mutex);
  return machine().take_violations();
}

void check_nothing_is_left(std::chrono::milliseconds patience) {
  Lock lock(machine().mutex);
  const auto limit = Clock::now() + patience;
  while (something_is_left(machine()) && Clock::now() < limit) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
    machine().progress();
  }
  check_communicators(machine());
  machine().check_streams_and_memory();
}

void set_faults(int device, const Faults& faults) {
  const Lock lock(machine().mutex);
  machine().devices[Machine::index(device)].faults = faults;
  machine().changed.notify_all();
}

void clear_faults() {
  const Lock lock(machine().mutex);
  for (Device& device : machine().devices) device.faults = {};
  machine().messages_side_by_side = false;
  machine().connects_each_function = false;
  machine().version = Machine::newest;
  machine().issues_on_a_thread = false;
  machine().has_windows = true;
  machine().registers_buffers = true;
  machine().changed.notify_all();
}

void set_messages_side_by_side(bool side_by_side) {
  const Lock lock(machine().mutex);
  machine().messages_side_by_side = side_by_side;
}

void set_connects_each_function(bool each) {
  const Lock lock(machine().mutex);
  machine().connects_each_function = each;
}

void set_registers(bool windows, bool buffers) {
  const Lock lock(machine().mutex);
  machine().has_windows = windows;
  machine().registers_buffers = buffers;
}

void set_version(int version) {
  const Lock lock(machine().mutex);
  machine().version = version;
}

void set_issues_on_a_thread(bool own) {
  const Lock lock(machine().mutex);
  machine().issues_on_a_thread = own;
}

int calls(const std::string& function) {
  const Lock lock(machine().mutex);
  return machine().calls[function];
}

std::vector<std::string> calls_in(const std::function<void()>& body) {
  ThreadState& thread = this_thread();
  thread.calls.clear();
  thread.notes_calls = true;
  body();
  thread.notes_calls = false;
  return std::exchange(thread.calls, {});
}

}  // namespace tutti::test::nccl_double
