#include "losses/staged.hpp"

#include <utility>

#include "group/call.hpp"
#include "values/fail.hpp"

namespace tutti::internal::losses {
namespace {

bool is_on_host(const ConstTensorView& array) {
  return array.device.type == DeviceType::cpu;
}

/// False if the array is null, has no elements or an invalid dtype. The loss reports the error.
bool has_bytes(const ConstTensorView& array) {
  return array.data != nullptr && static_cast<int>(array.dtype) < dtype_count && array.bytes() != 0;
}

}  // namespace

ConstTensorView Staged::on_host(std::string_view what, const ConstTensorView& array) {
  if (is_on_host(array)) return array;
  const auto device_text = to_string(array.device);
  if (group_ == nullptr)
    failf(Errc::unsupported,
          "{} are on {}, and only a group can copy them from there; pass a group on {}, or copy "
          "them to the host",
          what, device_text, device_text);
  auto& memory = group_->memory();
  if (array.device != memory.device())
    failf(Errc::unsupported,
          "{} are on {}, but this group works on {}; they must be on that device or on the host",
          what, device_text, to_string(memory.device()));
  if (!has_bytes(array)) return {array.data, array.dtype, array.shape};
  auto& copy = copies_.emplace_back(staging_memory(*group_), array.shape, array.dtype, stream_);
  memory.copy(copy.data(), array.data, array.bytes(), stream_);
  return copy;
}

ConstTensorView Staged::logits(const ConstTensorView& logits, std::string_view what) {
  if (group_ != nullptr) check_host_may_wait(*group_, stream_);
  const auto host = on_host(what, logits);
  logits_ = logits;
  if (!is_on_host(logits) && static_cast<int>(logits.dtype) < dtype_count)
    gradient_ = Tensor(group_->memory(), logits.shape, logits.dtype, stream_);
  return host;
}

tutti::losses::Batch Staged::on_host(const tutti::losses::Batch& batch) {
  auto host = batch;
  host.logits = logits(batch.logits);
  host.targets = on_host("targets", batch.targets);
  host.iid = on_host("iid", batch.iid);
  if (batch.weight) host.weight = on_host("weights", *batch.weight);
  return host;
}

Tensor Staged::gradient(const std::function<void(void* to)>& fill) {
  if (is_host()) {
    Tensor gradient(host_memory(), logits_.shape, logits_.dtype);
    fill(gradient.data());
    return gradient;
  }
  if (gradient_.bytes() != 0) {
    auto& host = copies_.front();
    fill(host.data());
    group_->memory().copy(gradient_.data(), host.data(), host.bytes(), stream_);
  }
  return std::move(gradient_);
}

}  // namespace tutti::internal::losses
