#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include <tutti/backend/forwarding_backend.hpp>

namespace tutti::test {

/// The faults of a FaultBackend. Launches count from 0.
struct Faults {
  std::chrono::nanoseconds delay{};  ///< Before every launch.
  std::optional<int> fail_at{};      ///< This launch throws `error` and reaches no peer.
  Error error{Errc::backend, "injected fault"};
  std::optional<int> drop_at{};     ///< This launch is lost without an error.
  std::optional<int> corrupt_at{};  ///< The first byte of this launch's output is flipped.
};

/// A backend with deliberate faults.
class FaultBackend final : public ForwardingBackend {
 public:
  FaultBackend(std::unique_ptr<Backend> inner, Faults faults)
      : ForwardingBackend(std::move(inner)), faults_(std::move(faults)) {}

  Work launch(std::span<const Op> ops, const Call& call) override {
    const int now = launches_.fetch_add(1);
    std::this_thread::sleep_for(faults_.delay);
    if (faults_.fail_at == now) throw Error(faults_.error);
    if (faults_.drop_at == now) return {};
    Work work = inner().launch(ops, call);
    if (faults_.corrupt_at == now) {
      work.wait();
      for (const Op& op : ops)
        if (op.out.bytes() != 0) *static_cast<std::byte*>(op.out.data) ^= std::byte{0xff};
    }
    return work;
  }

 private:
  Faults faults_;
  std::atomic<int> launches_{0};
};

}  // namespace tutti::test
