#pragma once

#include <cstddef>
#include <memory>

#include <tutti/backend/backend_table.hpp>

#include "support/fake_device.hpp"

namespace tutti::test {

/// Ways in which the fake backend can break the rules of streams, to show that tests notice.
struct FakeFlaws {
  bool ignores_call_stream = false;        ///< Reads the inputs without waiting for their kernels.
  bool block_stream_does_nothing = false;  ///< No stream waits for the outputs.
  bool blocks_the_host = false;            ///< launch() returns when the call has ended.
};

/// A backend for arrays on a FakeDevice. Calls run on a communication stream of this backend,
/// ordered after Call::stream. `local` moves the bytes, because the device's memory is host memory.
class FakeBackend final : public Backend {
 public:
  /// Blocks until all ranks have joined.
  FakeBackend(FakeDevice& device, const BackendInit& init, FakeFlaws flaws = {});
  ~FakeBackend() override;

  bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept override;
  Memory& memory() noexcept override { return device_; }
  Work launch(std::span<const Op> ops, const Call& call) override;
  void refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept override;
  std::unique_ptr<Backend> split(const SplitInit& init) override;
  void abort(std::string_view why) noexcept override;
  std::optional<Error> failure() const override;

 private:
  class State;

  FakeDevice& device_;
  BackendInit init_;
  std::unique_ptr<Backend> inner_;
  FakeFlaws flaws_;
  std::shared_ptr<FakeStream> communication_;
  std::shared_ptr<FakeStream> callbacks_;  ///< The thread of on_done().
};

}  // namespace tutti::test
