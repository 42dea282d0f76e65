#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "backends/nccl/double/clique.hpp"
#include "backends/nccl/double/machine.hpp"
#include "nccl/nccl_api.hpp"

// The state of NCCL in the double, and the frame of each of its functions.

namespace tutti::test::nccl_double {

/// The number of polls that return ncclInProgress after a communicator could continue.
inline constexpr int polls = 2;

struct Library {
  std::map<void*, std::unique_ptr<Comm>> comms;  ///< Dead ones too: a late call is noticed.
  std::map<std::string, std::shared_ptr<Clique>> cliques;  ///< By unique id.
  std::set<std::string> texts;                             ///< Of ncclGetLastError; never freed.
  const char* last_text = "";
  int next_id = 0;
  std::uintptr_t next_handle = 0x1000;
  int next_reduction = ncclNumOps;
  using Location = std::pair<int, int>;           ///< Comm::location().
  std::map<Location, std::thread::id> in_group;   ///< Whose open group has calls there.
  std::map<Location, std::set<Comm*>> launching;  ///< Those with calls under way.
};

Library& library();

std::string text_of(Function function);
std::string text_of(const Comm& comm);
std::string text_of(const Operation& operation);

/// One call of a function: the lock and the count.
class NcclCall {
 public:
  explicit NcclCall(const char* called)
      : name(called), thread(this_thread()), here(machine()), lock(here.mutex) {
    ++here.calls[called];
    thread.note(called);
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

std::optional<ncclResult_t> planned(const NcclCall& call, int device);
const Faults& faults_of(const NcclCall& call, const Comm& comm);
bool all_there(const Clique& clique);
/// Notes what a symmetric kernel of this version reads in place of its input.
void misread_windows(Machine& here, Operation& operation);
/// The handle of newly registered memory.
void* remember(Comm& comm, const RegisteredMemory& memory);

/// The memory that an operation reads and writes on its rank.
std::vector<Touch> touches_of(const Operation& operation);
bool overlap(const Touch& a, const Touch& b);

/// Advances a communicator.
void advance(const NcclCall& call, Comm& comm);

// The functions of operations.cpp, communicators.cpp and registration.cpp.
void fill_operations(backend::nccl::NcclApi& table);
void fill_communicators(backend::nccl::NcclApi& table);
void fill_registration(backend::nccl::NcclApi& table);

}  // namespace tutti::test::nccl_double
