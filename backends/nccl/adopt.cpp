#include "adopt.hpp"

#include "communicator.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {

void check_adopted(const Gpu& gpu, const BackendInit& init, Deadline limit,
                   const std::function<void()>& look) {
  if (init.adopt->communicator == nullptr)
    tutti::fail(Errc::invalid_argument, "the communicator to be adopted is null");
  const auto comm = static_cast<ncclComm_t>(init.adopt->communicator);
  const auto& nccl = gpu.nccl();
  ncclResult_t state = ncclInProgress;
  for (Pause pause;; pause()) {
    check(nccl, nccl.comm_get_async_error(comm, &state), "ncclCommGetAsyncError");
    check(nccl, state, "the communicator to be adopted has failed: an earlier call");
    if (state == ncclSuccess) break;
    look();
    if (limit.expired())
      tutti::fail(Errc::timeout, "the communicator to be adopted is still ncclInProgress");
  }
  int size = 0;
  int rank = 0;
  int device = 0;
  check(nccl, nccl.comm_count(comm, &size), "ncclCommCount");
  check(nccl, nccl.comm_user_rank(comm, &rank), "ncclCommUserRank");
  check(nccl, nccl.comm_cu_device(comm, &device), "ncclCommCuDevice");
  if (size != init.size || rank != init.rank)
    internal::failf(Errc::invalid_argument,
                    "the communicator to be adopted is rank {} of {}, the group here rank {} of {}",
                    rank, size, init.rank, init.size);
  if (device != gpu.index())
    internal::failf(Errc::invalid_argument,
                    "the communicator to be adopted is on cuda:{}, the group on cuda:{}", device,
                    gpu.index());
}

}  // namespace tutti::backend::nccl
