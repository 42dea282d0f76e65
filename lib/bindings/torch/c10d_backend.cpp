#include "torch/c10d_backend.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "torch/c10d_class.hpp"

namespace tutti::c10d_door {
namespace {

struct NoOptions {  // Of send and recv.
  milliseconds timeout = ::c10d::kUnsetTimeout;
  bool asyncOp = true;
};

}  // namespace

void BackendOverTutti::setTimeout(milliseconds timeout) {
  timeout_ = timeout;
  options_->timeout = timeout;
  in_torch_errors(getGroupDesc(), [&] { groups_->set_timeout(timeout); });
}

c10::intrusive_ptr<::c10d::Backend> BackendOverTutti::split(
    const c10::intrusive_ptr<::c10d::Store>&, const std::vector<int>& ranks,
    const c10::intrusive_ptr<::c10d::Backend::Options>& options) {
  auto part = in_torch_errors(getGroupDesc(),
                              [&] { return groups_->subset(ranks, call_options(timeout_)); });
  if (part == nullptr) return nullptr;
  return c10::make_intrusive<BackendOverTutti>(std::move(part),
                                               options ? options->timeout : timeout_.load());
}

WorkPointer BackendOverTutti::barrier(const ::c10d::BarrierOptions& options) {
  const c10::Device device =
      options.device_ids.empty()
          ? c10::Device(c10::kCPU)
          : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(options.device_ids[0]));
  return issue(OpType::BARRIER, "tutti:barrier", device, {}, options,
               [&](Call& call, const Run& run) { TUTTI_RUN(barrier); });
}

void BackendOverTutti::monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all) {
  const auto limit = options.timeout == ::c10d::kUnsetTimeout ? timeout_.load() : options.timeout;
  try {
    groups_->host().monitored_barrier({.deadline = Deadline::after(limit)});
  } catch (const Error& error) {
    auto late = error.where().missing;
    if (error.code() != Errc::timeout) throw_as_torch(error, getGroupDesc());
    if (limit <= kNoTimeout || std::ranges::find(late, rank_) != late.end())
      C10_THROW_ERROR(DistBackendError,
                      c10::str("tutti: Rank ", rank_, " timed out in monitoredBarrier after ",
                               limit.count(), " ms: ", error.what()));
    if (rank_ != 0)
      C10_THROW_ERROR(DistBackendError,
                      c10::str("tutti: Rank ", rank_, " successfully reached monitoredBarrier, ",
                               "but received errors while waiting for send/recv from rank 0, ",
                               "as other ranks did not: ", error.what()));
    if (!wait_all && late.size() > 1) late.resize(1);
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("tutti: ", wait_all ? "Ranks " : "Rank ", c10::Join(", ", late),
                 " failed to pass monitoredBarrier in ", limit.count(), " ms: ", error.what()));
  }
}

WorkPointer BackendOverTutti::send(Tensors& tensors, int peer, int tag) {
  return issue(OpType::SEND, "tutti:send", tensors, NoOptions(), [&](Call& call, const Run& run) {
    const auto data = call.arrays.moved(only(tensors), Use::reads);
    call.work = run.group().send_async(data, peer, tag, run.options);
  });
}

WorkPointer BackendOverTutti::recv(Tensors& tensors, int peer, int tag) {
  return receive(OpType::RECV, tensors, peer, tag);
}

WorkPointer BackendOverTutti::recvAnysource(Tensors& tensors, int tag) {
  return receive(OpType::RECVANYSOURCE, tensors, any_peer, tag);
}

WorkPointer BackendOverTutti::receive(OpType type, Tensors& tensors, int peer, int tag) {
  return issue(type, "tutti:recv", tensors, NoOptions(), [&](Call& call, const Run& run) {
    const auto data = call.arrays.moved(only(tensors), Use::writes);
    // A copy back would wait for the sender here, before a later send of this rank.
    TORCH_CHECK_VALUE(run.device.is_cpu() || !call.arrays.copies_back(),
                      "tutti: the tensor of a receive on ", run.device, " is not contiguous");
    call.work = run.group().recv_async(data, peer, tag, run.options, &call.source);
  });
}

c10::intrusive_ptr<::c10d::Backend> make_backend(const BackendOptions& options) {
  return in_torch_errors({}, [&] {
    return c10::make_intrusive<BackendOverTutti>(std::make_unique<Groups>(options),
                                                 options.timeout);
  });
}

namespace {

Groups& groups_of(const c10::intrusive_ptr<::c10d::Backend>& backend) {
  auto* ours = dynamic_cast<BackendOverTutti*>(backend.get());
  if (ours == nullptr)
    C10_THROW_ERROR(TypeError, c10::str("tutti: this is a backend ", backend->getBackendName()));
  return ours->groups();
}

}  // namespace

ProcessGroup& group_under(const std::string& name, const c10::Device& device) {
  return groups_of(::c10d::resolve_process_group(name)->getBackend(device.type())).on(device);
}

std::string description_of(const std::string& name) {
  return ::c10d::resolve_process_group(name)->getGroupDesc();
}

std::string describe(const c10::intrusive_ptr<::c10d::Backend>& backend) {
  return groups_of(backend).describe();
}

}  // namespace tutti::c10d_door
