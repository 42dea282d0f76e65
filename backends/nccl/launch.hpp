#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bounded.hpp"
#include "communicator.hpp"
#include "op_context.hpp"
#include "ops.hpp"
#include "work.hpp"

namespace tutti::backend::nccl {

/// The messages of one gather, scatter or all_to_all that lib/core/group has lowered. All ranks
/// make these messages in the same call, so NCCL matches the messages of two ranks by their order:
/// they need no tag and no separate communicator.
class Messages {
 public:
  explicit Messages(const OpContext& context) : context_(context) {}

  void add(const Op& op);
  /// Copies the messages of this rank to itself. Call it outside of the ncclGroup. @throws Error
  /// mismatch if the numbers or sizes of sends and receives differ.
  void copy_own() const;
  void inside(ncclComm_t comm) const;

 private:
  OpContext context_;
  std::vector<Op> others_;
  std::vector<ConstTensorView> own_in_;
  std::vector<TensorView> own_out_;
};

/// A call that is being queued on its stream. NCCL queues each ncclGroup of the call asynchronously
/// and may wait for the other ranks meanwhile. One thread at a time.
class Launch {
 public:
  /// Orders the call after the work on Call::stream. Holds `turn` until all of the call has been
  /// queued.
  Launch(const OpContext& context, std::shared_ptr<Communicator> communicator,
         std::span<const Op> ops, std::shared_ptr<EventState> state, Gpu::Turn turn,
         Counting& counting);
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  /// Advances without blocking. True when all of the call has been queued; the call's state then
  /// has its event. @throws Error.
  bool advance();
  cudaStream_t stream() const noexcept { return context_.stream; }
  bool is_captured() const noexcept { return state_->is_captured(); }
  /// Gives up the turn on the device after an abort. Keeps the call's memory, which NCCL may still
  /// use.
  void give_up() noexcept { turn_.reset(); }

 private:
  void begin_group();

  OpContext context_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<EventState> state_;
  std::optional<Gpu::Turn> turn_;
  std::vector<std::int64_t> rows_;  // A copy of the operations' rows, which the caller may destroy.
  std::vector<Lowering> lowered_;
  std::vector<Bounded> bounded_;
  Counting& counting_;
  Messages messages_;
  int groups_ = 1;
  int begun_ = 0;
};

}  // namespace tutti::backend::nccl
