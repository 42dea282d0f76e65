#include "folding.hpp"

#include <algorithm>

namespace tutti::backend::nccl {

Folding::Folding(const OpContext& context, const Op& op)
    : context_(context), op_(op), mine_(), slot_bytes_() {
  const auto ranks = static_cast<std::size_t>(context.size);
  if (op.kind == Operation::reduce_scatter) {
    mine_ = slice(context.rank);
    slot_bytes_ = aligned(mine_.bytes);
  } else {
    slot_bytes_ = aligned((op.in.bytes() + ranks - 1) / ranks);
    mine_ = slice(context.rank);
  }
}

Folding::Slice Folding::slice(int rank) const noexcept {
  if (op_.kind == Operation::reduce_scatter) {
    const auto row = op_.in.row_bytes();
    return {static_cast<std::size_t>(op_.rows.offset(rank)) * row,
            static_cast<std::size_t>(op_.rows[rank]) * row};
  }
  const std::size_t all = op_.in.bytes();
  const std::size_t begin = std::min(all, static_cast<std::size_t>(rank) * slot_bytes_);
  return {begin, std::min(slot_bytes_, all - begin)};
}

void Folding::before(int group) {
  if (op_.in.bytes() == 0) return;
  if (group != 0) return fold();
  const auto ranks = static_cast<std::size_t>(context_.size);
  scratch_ = Scratch(context_, ranks * (slot_bytes_ + (scaled() ? sizeof(double) : 0)));
  if (scaled()) context_.kernels->put(scale(context_.rank), op_.reduce.scale, context_.stream);
  context_.copy(slot(context_.rank), in() + mine_.begin, mine_.bytes);
}

void Folding::inside(int group, ncclComm_t comm) {
  if (op_.in.bytes() == 0) return;
  if (group == 0) {
    for (int r = 0; r < context_.size; ++r) {
      const auto theirs = slice(r);
      context_.send(in() + theirs.begin, theirs.bytes, r, comm);
      context_.recv(slot(r), mine_.bytes, r, comm);
      if (!scaled()) continue;
      if (theirs.bytes != 0) context_.send(scale(context_.rank), sizeof(double), r, comm);
      if (mine_.bytes != 0) context_.recv(scale(r), sizeof(double), r, comm);
    }
  } else if (op_.kind == Operation::all_reduce && context_.size == 1) {
    context_.copy(out(), slot(0), mine_.bytes);
  } else if (op_.kind == Operation::all_reduce) {
    check(context_.gpu.nccl(),
          context_.gpu.nccl().all_gather(slot(context_.rank), is_whole() ? out() : scratch_.data(),
                                         slot_bytes_, ncclUint8, comm, context_.stream),
          "ncclAllGather");
  } else if (scans()) {
    for (int r = 0; r < context_.size; ++r) {
      const auto theirs = slice(r);
      context_.send(slot(r), mine_.bytes, r, comm);
      context_.recv(out() + theirs.begin, theirs.bytes, r, comm);
    }
  } else if (context_.rank != op_.root) {
    context_.send(slot(context_.rank), mine_.bytes, op_.root, comm);
  } else {
    for (int r = 0; r < context_.size; ++r)
      context_.recv(out() + slice(r).begin, slice(r).bytes, r, comm);
  }
}

void Folding::after() {
  if (op_.in.bytes() == 0) return;
  switch (op_.kind) {
    case Operation::all_reduce:
      if (!is_whole()) context_.copy(out(), scratch_.data(), op_.in.bytes());
      return;
    case Operation::reduce_scatter:
      fold();
      return context_.copy(out(), slot(context_.rank), mine_.bytes);
    case Operation::reduce:
      if (context_.rank != op_.root) return;
      [[fallthrough]];
    default:
      return context_.copy(out() + mine_.begin, slot(context_.rank), mine_.bytes);
  }
}

void Folding::fold() {
  if (mine_.bytes == 0) return;
  using Form = cuda::Fold::Form;
  context_.kernels->fold({.slots = scratch_.data(),
                          .scales = scaled() ? scale(0) : nullptr,
                          .slot = slot_bytes_,
                          .bytes = mine_.bytes,
                          .size = context_.size,
                          .into = context_.rank,
                          .dtype = op_.in.dtype,
                          .kind = op_.reduce.kind,
                          .form = op_.kind == Operation::scan             ? Form::scan
                                  : op_.kind == Operation::exclusive_scan ? Form::exclusive_scan
                                                                          : Form::all},
                         context_.stream);
}

}  // namespace tutti::backend::nccl
