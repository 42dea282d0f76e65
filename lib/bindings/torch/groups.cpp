#include "torch/groups.hpp"

#include <utility>

#include <tutti/adapters/torch/detail/types.hpp>
#include <tutti/error.hpp>

#include "torch/c10d_store.hpp"

namespace tutti::c10d_door {
namespace {

/// A name has 1 to 200 bytes.
std::string name_of_group(const std::string& group, const std::string& suffix = {}) {
  return (group.empty() ? "world" : group.substr(0, 200 - suffix.size())) + suffix;
}

}  // namespace

Groups::Groups(const BackendOptions& options)
    : store_(make_store(options.store)),
      device_backend_(options.device_backend),
      host_(ProcessGroup::create({.backend = options.backend,
                                  .store = store_,
                                  .rank = options.rank,
                                  .size = options.size,
                                  .timeout = options.timeout,
                                  .name = name_of_group(options.group)})) {}

Groups::Groups(ProcessGroup host, std::shared_ptr<Store> store, std::string device_backend)
    : store_(std::move(store)),
      device_backend_(std::move(device_backend)),
      host_(std::move(host)) {}

ProcessGroup& Groups::on(const c10::Device& device) {
  if (device.is_cpu()) return host_;
  if (made_.load() == nullptr) {
    const std::lock_guard lock(making_);
    if (!on_device_) {
      on_device_.emplace(make(device));
      device_ = device;
      made_ = &*on_device_;
    }
  }
  if (device != device_)
    fail(Errc::invalid_argument, "the tensor is on " + device.str() +
                                     ", and earlier calls of this group were on " + device_.str() +
                                     "; a rank uses one device in a group");
  return *made_;
}

ProcessGroup Groups::make(const c10::Device& device) {
  GroupOptions group{.backend = device_backend_,
                     .store = store_,
                     .rank = host_.rank(),
                     .size = host_.size(),
                     .device = libtorch::from_torch(device),
                     .timeout = host_.timeout(),
                     .name = name_of_group(host_.name(), "/cuda")};
  try {
    return ProcessGroup::create(group);
  } catch (const Error& without_staging) {
    // All ranks have this error, so all of them try the next backend.
    if (without_staging.code() != Errc::unsupported || device_backend_ != "auto") throw;
    group.backend = "gloo";
    try {
      return ProcessGroup::create(group);
    } catch (const Error& staged) {
      throw Error(staged.code(),
                  std::string(without_staging.message()) + "; gloo: " + staged.message(),
                  staged.where());
    }
  }
}

std::unique_ptr<Groups> Groups::subset(std::span<const int> ranks, const CallOptions& options) {
  auto part = host_.subset(ranks, options);
  if (!part) return nullptr;
  return std::unique_ptr<Groups>(new Groups(std::move(*part), store_, device_backend_));
}

void Groups::set_timeout(std::chrono::nanoseconds timeout) {
  host_.set_timeout(timeout);
  if (auto* group = made_.load()) group->set_timeout(timeout);
}

void Groups::abort(std::string_view why) noexcept {
  host_.abort(why);
  if (auto* group = made_.load()) group->abort(why);
}

std::string Groups::describe() const {
  const auto text = [](const ProcessGroup& group) {
    return group.backend() + " over " + group.transport();
  };
  const auto* group = made_.load();
  return text(host_) +
         (group == nullptr ? "" : "; for tensors on " + device_.str() + " " + text(*group));
}

}  // namespace tutti::c10d_door
