#pragma once

#include <vector>

#include <tutti/backend/backend.hpp>

#include "op_context.hpp"

namespace tutti::backend::nccl {

/// The messages that the front makes of one gather, scatter or all_to_all. All ranks make them in
/// the same call, so they need no tag and no communicator of their own: NCCL matches those of two
/// ranks by their order in the group.
class Messages {
 public:
  explicit Messages(const OpContext& context) : context_(context) {}

  void add(const Op& op);
  /// What this rank sends to itself. Outside of the group. @throws Error.
  void copy_own() const;
  void inside(ncclComm_t comm) const;

 private:
  OpContext context_;
  std::vector<Op> others_;
  std::vector<ConstTensorView> own_in_;
  std::vector<TensorView> own_out_;
};

}  // namespace tutti::backend::nccl
