#include "connection.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "failure.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {
namespace {

bool is_one(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && value == std::string_view("1");
}

/// Claims the device of `gpu` for one rank of a communicator within this process, until the result
/// is destroyed. Two ranks of a process on one device would deadlock: a call holds the device until
/// NCCL has queued it, and NCCL may wait for the other ranks meanwhile. Ranks with different tables
/// hold different locks. @throws Error unsupported when another rank of the communicator has the
/// device, or is in this process with an NCCL whose kernels use the memory of such ranks:
/// cudaMallocAsync gives them no access (prims_simple.h of NCCL up to 2.23).
std::shared_ptr<void> claim_device(const ncclUniqueId& id, const Gpu& gpu,
                                   const std::string& group) {
  static std::mutex guard;
  static auto& taken = *new std::set<std::tuple<std::string, int, const CudaApi*>>;
  const int device = gpu.index();
  const int version = Features::of(gpu.nccl()).version;
  const std::tuple key(std::string(id.internal, sizeof id.internal), device, &gpu.cuda());
  {
    const std::lock_guard lock(guard);
    const auto other = taken.lower_bound({std::get<0>(key), 0, nullptr});
    const bool threads = other != taken.end() && std::get<0>(*other) == std::get<0>(key);
    if (threads && std::get<1>(*other) != device && version < NCCL_VERSION(2, 24, 0) &&
        !is_one("NCCL_P2P_DIRECT_DISABLE"))
      internal::failf(Errc::unsupported,
                      "ranks of group '{}' are threads of one process, and NCCL {} uses memory of "
                      "a peer in the process, to which its device may have no access; install NCCL "
                      "2.24 or newer, use a process per rank, or set NCCL_P2P_DIRECT_DISABLE=1",
                      group, version_text(version));
    if (!taken.insert(key).second)
      internal::failf(Errc::unsupported,
                      "another rank of group '{}' uses cuda:{} in this process; give each rank a "
                      "device or a process of its own",
                      group, device);
  }
  return {nullptr, [key](std::nullptr_t) {
            const std::lock_guard lock(guard);
            taken.erase(key);
          }};
}

/// Compares rank, size and device of the communicator to be adopted with those of the group.
/// @throws Error invalid_argument if they differ; its text names both sides.
void check_identity(const Gpu& gpu, const BackendInit& init, ncclComm_t comm) {
  int size = 0;
  int rank = 0;
  int device = 0;
  const auto& nccl = gpu.nccl();
  check(nccl, nccl.comm_count(comm, &size), "ncclCommCount");
  check(nccl, nccl.comm_user_rank(comm, &rank), "ncclCommUserRank");
  check(nccl, nccl.comm_cu_device(comm, &device), "ncclCommCuDevice");
  if (size != init.size || rank != init.rank)
    internal::failf(Errc::invalid_argument,
                    "the communicator to adopt is rank {} of {}, the group is rank {} of {}; they "
                    "must be equal",
                    rank, size, init.rank, init.size);
  if (device != gpu.index())
    internal::failf(Errc::invalid_argument,
                    "the communicator to adopt is on cuda:{}, the group is on cuda:{}; they must "
                    "be on the same device",
                    device, gpu.index());
}

/// @throws Error mismatch, the same on each rank, if the settings of two ranks differ.
void require_equal(const std::vector<std::string>& settings, const std::string& group) {
  const auto other =
      std::ranges::find_if(settings, [&](const auto& one) { return one != settings[0]; });
  if (other == settings.end()) return;
  internal::failf(Errc::mismatch,
                  "group '{}': the settings of backend 'nccl' are '{}' on rank 0 and '{}' on rank "
                  "{}; they must be equal on all ranks, except for priority",
                  group, settings[0], *other, other - settings.begin());
}

void warn_of_settings(const BackendInit& init) {
  if (is_one("NCCL_LAUNCH_ORDER_IMPLICIT"))
    init.logger(LogLevel::warning,
                "NCCL_LAUNCH_ORDER_IMPLICIT=1 makes NCCL fail if two threads use a device at a "
                "time, which the first message between two ranks may do");
  if (is_one("NCCL_COMM_BLOCKING"))
    init.logger(LogLevel::warning,
                "NCCL_COMM_BLOCKING=1 makes NCCL ignore that this library asks for communicators "
                "that do not block: deadlines do not hold inside NCCL");
}

}  // namespace

Connection::Connection(std::shared_ptr<Gpu> gpu, const BackendInit& init)
    : gpu_(std::move(gpu)),
      init_(init),
      rendezvous_(init),
      communicator_(std::make_shared<Communicator>(gpu_)) {}

void Connection::open(Deadline limit) {
  const DeviceScope scope(gpu_->cuda(), gpu_->index());
  if (init_.adopt) return adopt(limit);
  // NCCL may choose another algorithm for other settings, so ranks that differ would wait forever.
  compare_settings();
  warn_of_settings(init_);
  const auto id = exchange_id();
  claim_ = claim_device(id, *gpu_, init_.name);
  communicator_->begin(id, init_.rank, init_.size);
  cuda::await(
      limit, late_in_nccl, [this] { return communicator_->ready(); }, [this] { check_peers(); });
}

void Connection::compare_settings() {
  require_equal(rendezvous_.exchange("nccl/here", gpu_->settings().of_communicators()), init_.name);
}

void Connection::adopt(Deadline limit) {
  if (init_.adopt->communicator == nullptr)
    tutti::fail(Errc::invalid_argument, "the communicator to adopt is null");
  if (const auto settings = gpu_->settings().of_communicators(); !settings.empty())
    internal::failf(
        Errc::invalid_argument,
        "the communicator to adopt keeps the ncclConfig_t that it was made with, so the "
        "settings '{}' of backend 'nccl' have no effect on it; make the communicator "
        "with them, and leave only priority in GroupOptions::backend",
        settings);
  const auto comm = static_cast<ncclComm_t>(init_.adopt->communicator);
  const auto& nccl = gpu_->nccl();
  // Before the rendezvous: no rank then uses a communicator that another rank refuses.
  const auto ready = [&] {
    ncclResult_t state = ncclInProgress;
    check(nccl, nccl.comm_get_async_error(comm, &state), "ncclCommGetAsyncError");
    check(nccl, state, "the communicator to be adopted has failed: an earlier call");
    return state == ncclSuccess;
  };
  cuda::await(limit, "the communicator to be adopted is still ncclInProgress", ready,
              [this] { check_peers(); });
  check_identity(*gpu_, init_, comm);
  compare_settings();
  communicator_->adopt(*init_.adopt);
}

ncclUniqueId Connection::exchange_id() {
  if (init_.rank == 0) {
    ncclUniqueId id;
    check(gpu_->nccl(), gpu_->nccl().get_unique_id(&id), "ncclGetUniqueId");
    rendezvous_.publish("nccl/id", std::as_bytes(std::span(&id, 1)));
    return id;
  }
  return to_id(rendezvous_.await("nccl/id"), "rank 0");
}

Error Connection::give_up(const Error& mine) noexcept {
  const Error cause = rendezvous_.give_up(mine);
  (void)abort_all({communicator_});
  return cause;
}

}  // namespace tutti::backend::nccl
