#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <tutti/backend/backend.hpp>

#include "folding.hpp"
#include "op_context.hpp"

namespace tutti::backend::nccl {

/// The algorithm of an all_gather or reduce_scatter, chosen by arguments that are equal on all
/// ranks.
enum class GatherAlgorithm : std::uint8_t {
  equal,  ///< ncclAllGather or ncclReduceScatter.
  /// all_gather only: ncclAllGather of slots as large as the largest block, and copies.
  padded,
  broadcasts  ///< An ncclBroadcast or ncclReduce per rank that has rows.
};
GatherAlgorithm choose_gather(const Rows& rows, int size, std::size_t row_bytes) noexcept;

/// True when NCCL reduces `dtype` by `kind` as ReduceOp defines.
bool can_reduce(DType dtype, ReduceOp::Kind kind) noexcept;
/// True when every order of reduction in NCCL gives the result of the left fold. True for
/// operations that do not reduce.
bool is_left_fold(const Op& op, int size) noexcept;
/// True when an operation needs the library's own kernels.
bool needs_kernels(const Op& op, int size, bool order_fixed) noexcept;

/// True when a call with this operation needs scratch memory, or has work after its last NCCL
/// kernel (copies out of the scratch memory).
bool needs_scratch(const Op& op, int size, bool order_fixed) noexcept;

/// False for an operation that a group of one rank computes without NCCL: all but a scaling by
/// NCCL.
bool needs_nccl(const Op& op, int size, bool order_fixed) noexcept;

/// One collective as NCCL calls in one or more ncclGroups, which all operations of a call share.
/// For each ncclGroup, call before() outside of it and then inside() within it; call after() when
/// the last ncclGroup has been queued. The number of ncclGroups is equal on all ranks.
class Lowering {
 public:
  Lowering(const OpContext& context, const Op& op, bool order_fixed);

  int groups() const noexcept { return folding_ ? folding_->groups() : 1; }
  bool needs_nccl() const noexcept { return needs_nccl_; }
  void before(int group, ncclComm_t comm);
  void inside(int group, ncclComm_t comm);
  void after(ncclComm_t comm);

 private:
  const std::byte* in(std::int64_t row) const noexcept;
  std::byte* out(std::int64_t row) const noexcept;
  std::size_t bytes_of(std::int64_t rows) const noexcept {
    return static_cast<std::size_t>(rows) * row_bytes_;
  }
  std::size_t slot() const noexcept;
  std::int64_t rows_to(int rank) const noexcept;
  std::int64_t rows_from(int rank) const noexcept;
  template <typename F>
  void for_each_rank(const F& f) const;
  void make_op(ncclComm_t comm);
  void copy_alone() const;
  void gather(ncclComm_t comm);
  void reduce_scatter(ncclComm_t comm);

  OpContext context_;
  Op op_;
  std::optional<Folding> folding_;  // If set, it computes the operation.
  bool needs_nccl_;
  GatherAlgorithm algorithm_ = GatherAlgorithm::equal;
  std::size_t row_bytes_ = 0;
  Scratch scratch_;
  ncclRedOp_t reduce_ = ncclSum;
  bool made_op_ = false;
};

}  // namespace tutti::backend::nccl
