#include "group/lowering.hpp"

#include "values/fail.hpp"

namespace tutti::internal {
namespace {

constexpr int reserved_tag = -1;  // Callers' tags are >= 0.

ConstTensorView block(const ConstTensorView& whole, const Rows& rows, int rank) {
  const auto* begin = static_cast<const std::byte*>(whole.data) +
                      static_cast<std::size_t>(rows.offset(rank)) * whole.row_bytes();
  return {begin, whole.dtype, whole.shape.with_rows(rows[rank]), whole.device};
}

TensorView block(const TensorView& whole, const Rows& rows, int rank) {
  auto* begin = static_cast<std::byte*>(whole.data) +
                static_cast<std::size_t>(rows.offset(rank)) * whole.row_bytes();
  return {begin, whole.dtype, whole.shape.with_rows(rows[rank]), whole.device};
}

}  // namespace

std::vector<Op> to_point_to_point(const Op& op, const Bounds& b) {
  std::vector<Op> batch;
  const auto send = [&](const ConstTensorView& v, int peer) {
    batch.push_back({.kind = Operation::send, .in = v, .peer = peer, .tag = reserved_tag});
  };
  const auto recv = [&](const TensorView& v, int peer) {
    batch.push_back({.kind = Operation::recv, .out = v, .peer = peer, .tag = reserved_tag});
  };
  const auto own = [&](const TensorView& to, const ConstTensorView& from) {
    send(from, b.rank);
    recv(to, b.rank);
  };
  const bool at_root = op.root == b.rank;
  switch (op.kind) {
    case Operation::gather:
      if (!at_root) {
        send(op.in, op.root);
        break;
      }
      own(block(op.out, op.rows, b.rank), op.in);
      for (int r = 0; r < b.size; ++r)
        if (r != b.rank) recv(block(op.out, op.rows, r), r);
      break;
    case Operation::scatter:
      if (!at_root) {
        recv(op.out, op.root);
        break;
      }
      own(op.out, block(op.in, op.rows, b.rank));
      for (int r = 0; r < b.size; ++r)
        if (r != b.rank) send(block(op.in, op.rows, r), r);
      break;
    case Operation::all_to_all:
      own(block(op.out, op.rows, b.rank), block(op.in, op.send_rows, b.rank));
      for (int step = 1; step < b.size; ++step) {  // Each rank starts with a different peer.
        const int to = (b.rank + step) % b.size;
        const int from = (b.rank + b.size - step) % b.size;
        send(block(op.in, op.send_rows, to), to);
        recv(block(op.out, op.rows, from), from);
      }
      break;
    default:
      failf(Errc::unsupported, "{} cannot be composed of sends and receives", name_of(op.kind));
  }
  return batch;
}

std::vector<Op> refused_pairs(const Op& op, const Bounds& b) {
  if (op.kind != Operation::all_to_all && (op.root < 0 || op.root >= b.size)) return {};
  const TensorView nothing(nullptr, DType::u8, {0});
  auto batch = to_point_to_point({.kind = op.kind,
                                  .in = nothing,
                                  .out = nothing,
                                  .rows = Rows(0),
                                  .send_rows = Rows(0),
                                  .root = op.root},
                                 b);
  std::erase_if(batch, [&](const Op& pair) { return pair.peer == b.rank; });
  return batch;
}

}  // namespace tutti::internal
