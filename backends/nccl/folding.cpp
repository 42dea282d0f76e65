#include "folding.hpp"

#include <algorithm>

#include "errors.hpp"

namespace tutti::backend::nccl {

Folding::Folding(const Place& place, const Op& op)
    : place_(place), op_(op), mine_(), slot_bytes_() {
  const auto ranks = static_cast<std::size_t>(place.size);
  if (op.kind == Operation::reduce_scatter) {
    mine_ = slice(place.rank);
    slot_bytes_ = aligned(mine_.bytes);
  } else {
    slot_bytes_ = aligned((op.in.bytes() + ranks - 1) / ranks);
    mine_ = slice(place.rank);
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
  const auto ranks = static_cast<std::size_t>(place_.size);
  scratch_ = Scratch(place_, ranks * (slot_bytes_ + (scaled() ? sizeof(double) : 0)));
  if (scaled()) place_.kernels->put(scale(place_.rank), op_.reduce.scale, place_.stream);
  place_.copy(slot(place_.rank), in() + mine_.begin, mine_.bytes);
}

void Folding::inside(int group, ncclComm_t comm) {
  if (op_.in.bytes() == 0) return;
  if (group == 0) {
    for (int r = 0; r < place_.size; ++r) {
      const auto theirs = slice(r);
      place_.send(in() + theirs.begin, theirs.bytes, r, comm);
      place_.recv(slot(r), mine_.bytes, r, comm);
      if (!scaled()) continue;
      if (theirs.bytes != 0) place_.send(scale(place_.rank), sizeof(double), r, comm);
      if (mine_.bytes != 0) place_.recv(scale(r), sizeof(double), r, comm);
    }
  } else if (op_.kind == Operation::all_reduce) {
    check(place_.gpu.nccl(),
          place_.gpu.nccl().all_gather(slot(place_.rank), is_whole() ? out() : scratch_.data(),
                                       slot_bytes_, ncclUint8, comm, place_.stream),
          "ncclAllGather");
  } else if (scans()) {
    for (int r = 0; r < place_.size; ++r) {
      const auto theirs = slice(r);
      place_.send(slot(r), mine_.bytes, r, comm);
      place_.recv(out() + theirs.begin, theirs.bytes, r, comm);
    }
  } else if (place_.rank != op_.root) {
    place_.send(slot(place_.rank), mine_.bytes, op_.root, comm);
  } else {
    for (int r = 0; r < place_.size; ++r)
      place_.recv(out() + slice(r).begin, slice(r).bytes, r, comm);
  }
}

void Folding::after() {
  if (op_.in.bytes() == 0) return;
  switch (op_.kind) {
    case Operation::all_reduce:
      if (!is_whole()) place_.copy(out(), scratch_.data(), op_.in.bytes());
      return;
    case Operation::reduce_scatter:
      fold();
      return place_.copy(out(), slot(place_.rank), mine_.bytes);
    case Operation::reduce:
      if (place_.rank != op_.root) return;
      [[fallthrough]];
    default:
      return place_.copy(out() + mine_.begin, slot(place_.rank), mine_.bytes);
  }
}

void Folding::fold() {
  if (mine_.bytes == 0) return;
  using Form = cuda::Fold::Form;
  place_.kernels->fold({.slots = scratch_.data(),
                        .scales = scaled() ? scale(0) : nullptr,
                        .slot = slot_bytes_,
                        .bytes = mine_.bytes,
                        .size = place_.size,
                        .into = place_.rank,
                        .dtype = op_.in.dtype,
                        .kind = op_.reduce.kind,
                        .form = op_.kind == Operation::scan             ? Form::scan
                                : op_.kind == Operation::exclusive_scan ? Form::exclusive_scan
                                                                        : Form::all},
                       place_.stream);
}

}  // namespace tutti::backend::nccl
