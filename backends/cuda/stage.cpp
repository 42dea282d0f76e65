#include "stage.hpp"

#include <algorithm>

namespace tutti::backend::cuda {
namespace {

constexpr std::size_t line = 64;

std::size_t rounded(std::size_t bytes) noexcept {
  return (bytes + line - 1) / line * line;
}

/// True for in-place calls and for broadcast, where one copy is enough.
bool is_one_array(const Op& op) noexcept {
  return op.in.data == op.out.data;
}

std::size_t room_for(const Op& op) noexcept {
  const std::size_t in = rounded(op.in.bytes());
  const std::size_t out = rounded(op.out.bytes());
  return is_one_array(op) ? std::max(in, out) : in + out;
}

}  // namespace

template <typename Copies>
void Stage::queue(const Copies& copies) {
  const DeviceScope scope(staging_.gpu->cuda(), staging_.gpu->index());
  copies_ = false;
  try {
    copies();
  } catch (...) {
    if (copies_) block_.lose();
    throw;
  }
  block_.busy_on(*staging_.gpu, staging_.copies->get());
}

Stage::Stage(const Staging& staging, const Op& op)
    : staging_(staging),
      writes_(op.kind != Operation::broadcast || op.root != staging.rank),
      block_(staging.pool->take(room_for(op))) {
  in_ = block_.data();
  out_ = is_one_array(op) || in_ == nullptr ? in_ : in_ + rounded(op.in.bytes());
  // all_gather_bounded does not write the slots beyond each rank's rows, and a custom
  // exclusive_scan does not write `out` on rank 0. The whole copy of `out` returns to the device,
  // so for these operations it begins with the bytes of `out`.
  const bool keeps =
      op.kind == Operation::all_gather_bounded ||
      (op.kind == Operation::exclusive_scan && op.reduce.kind == ReduceOp::Kind::custom);
  const bool reads = op.kind != Operation::broadcast || op.root == staging.rank;
  queue([&] {
    if (keeps) copy(out_, op.out.data, op.out.bytes(), cudaMemcpyDeviceToHost);
    if (reads && !(keeps && is_one_array(op)))
      copy(in_, op.in.data, op.in.bytes(), cudaMemcpyDeviceToHost);
  });
}

bool Stage::ready() {
  if (!block_.busy() || !block_.busy()->done()) return !block_.busy();
  block_.idle();
  return true;
}

Op Stage::on_host(const Op& op) const noexcept {
  Op host = op;
  host.in.device = {};
  host.out.device = {};
  host.in.data = op.in.bytes() == 0 ? nullptr : in_;
  host.out.data = op.out.bytes() == 0 ? nullptr : out_;
  return host;
}

void Stage::bring_back(const Op& op) {
  if (!writes_ || op.out.bytes() == 0) return;
  queue([&] { copy(op.out.data, out_, op.out.bytes(), cudaMemcpyHostToDevice); });
}

void Stage::copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return;
  const auto& cuda = staging_.gpu->cuda();
  check(cuda, cuda.memcpy_async(to, from, bytes, kind, staging_.copies->get()), "cudaMemcpyAsync");
  copies_ = true;
}

}  // namespace tutti::backend::cuda
