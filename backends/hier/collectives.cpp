#include "collectives.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "chunks.hpp"
#include "kernels/reduce.hpp"

// While the lanes move chunk t between the hosts, the ranks of a host work on chunk t + 1, which
// then moves beside chunk t.

namespace tutti::backend::hier {
namespace {

const std::byte* at(const ConstTensorView& view, std::size_t bytes) {
  return static_cast<const std::byte*>(view.data) + bytes;
}
std::byte* at(const TensorView& view, std::size_t bytes) {
  return static_cast<std::byte*>(view.data) + bytes;
}
ConstTensorView elements(const void* data, DType dtype, std::size_t count) {
  return {data, dtype, Shape::vector(static_cast<std::int64_t>(count))};
}
TensorView elements(void* data, DType dtype, std::size_t count) {
  return {data, dtype, Shape::vector(static_cast<std::int64_t>(count))};
}

/// The reduction of all but the last step: an average is divided at the end.
ReduceOp first_step(const Op& op) {
  return op.reduce.kind == ReduceOp::Kind::avg ? ReduceOp::sum : op.reduce;
}
/// The reduction of results of first_step().
ReduceOp later_step(const Op& op) {
  const auto kind = op.reduce.kind;
  const bool sums = kind == ReduceOp::Kind::avg || kind == ReduceOp::Kind::premul_sum;
  return sums ? ReduceOp::sum : op.reduce;
}
void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}
void last_step(const Op& op, void* data, std::size_t count, int size) {
  if (op.reduce.kind == ReduceOp::Kind::avg)
    internal::divide(op.in.dtype, data, count, static_cast<std::size_t>(size));
}

}  // namespace

Collectives::~Collectives() {
  for (const auto& state : in_flight_)
    if (state != nullptr) state->wait_until(Deadline::none());
}

void Collectives::start_lane(const Op& op) {
  in_flight_.emplace_back();  // Before the call runs: it could not be waited for without a place.
  in_flight_.back() = levels_.lane[started_++ % levels_.lane.size()]->start(op, call_);
}

void Collectives::wait_lane() {
  const auto state = std::move(in_flight_.front());
  in_flight_.pop_front();
  if (state == nullptr) return;
  state->wait_until(Deadline::none());
  if (const auto error = state->error()) std::rethrow_exception(error);
}

void Collectives::inner_barrier() {
  inner(Op{.kind = Operation::barrier});
}

/// An all_gather or reduce_scatter of the slices of a chunk within the host, without its arrays.
Op Collectives::inner_rows(Operation kind, const Chunks& chunks, std::size_t chunk) {
  const auto ranks = topology_.ranks_of(topology_.host()).size();
  rows_.clear();
  for (std::size_t k = 0; k < ranks; ++k)
    rows_.push_back(static_cast<std::int64_t>(chunks.slice(chunk, static_cast<int>(k)).count));
  return {.kind = kind, .rows = Rows(rows_)};
}

/// True if all bytes of the operation have to cross between hosts anyway, if no host has several
/// ranks, if the result depends on the order of the ranks, or if the dtype is too coarse to round a
/// host's part of the result.
bool Collectives::gains_nothing(const Op& op) const {
  if (topology_.most_on_a_host() == 1) return true;
  const bool ordered = call_.order_fixed || op.reproducible ||
                       (op.reduce.kind == ReduceOp::Kind::custom && !op.reduce.commutative);
  const bool coarse = is_float(op.in.dtype) && size_of(op.in.dtype) == 1;
  switch (op.kind) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
      return ordered || coarse;
    case Operation::barrier:
    case Operation::broadcast:
    case Operation::all_gather:
      return false;
    default:
      return true;
  }
}

std::size_t Collectives::parts_of(const Op& op) const {
  const auto hosts = static_cast<std::size_t>(topology_.hosts());
  // First: the arrays of such an operation may differ between the ranks.
  if (hosts == 1 || gains_nothing(op)) return 1;
  if (averages_halves(op)) return parts_of(in_float(op));
  if (std::max(op.in.bytes(), op.out.bytes()) <= small_bytes) return hosts + 2;
  switch (op.kind) {
    case Operation::all_gather:
      return HostBlocks(topology_, op.rows, op.out.row_bytes(), 1).size() * hosts + 1;
    case Operation::reduce_scatter:
      return HostBlocks(topology_, op.rows, static_cast<std::size_t>(op.out.shape.row_numel()),
                        size_of(op.out.dtype))
                 .size() *
             (hosts + 1);
    case Operation::broadcast:
      return Chunks(topology_, op.in.bytes(), 1).size() + 1;
    default:
      return 2 *
             Chunks(topology_, static_cast<std::size_t>(op.in.shape.numel()), size_of(op.in.dtype))
                 .size();
  }
}

void Collectives::run(const Op& op) {
  if (topology_.hosts() == 1) return inner(op);
  if (gains_nothing(op)) return run_flat(op);
  if (averages_halves(op)) return average_halves(op);
  switch (op.kind) {
    case Operation::all_reduce:
    case Operation::reduce:
      return reduce(op);
    case Operation::reduce_scatter:
      return reduce_scatter(op);
    case Operation::broadcast:
      return broadcast(op);
    case Operation::all_gather:
      return all_gather(op);
    default:
      return barrier();
  }
}

void Collectives::run_flat(const Op& op) {
  inner_barrier();
  levels_.flat->run(op, call_);
}

void Collectives::barrier() {
  inner_barrier();
  if (in_lane(1)) levels_.lane[0]->run(Op{.kind = Operation::barrier}, call_);
  inner_barrier();
}

/// all_reduce, or reduce to a root.
void Collectives::reduce(const Op& op) {
  const bool to_all = op.kind == Operation::all_reduce;
  const auto dtype = op.in.dtype;
  const auto element = size_of(dtype);
  const Chunks chunks(topology_, static_cast<std::size_t>(op.in.shape.numel()), element);
  const bool leads = in_lane(chunks.lanes());
  const int root_host = to_all ? -1 : topology_.host_of(op.root);
  const bool has_result = to_all || topology_.host() == root_host;
  const auto result = [&](const Chunks::Piece& part) {
    return elements(at(op.out, part.from * element), dtype, part.count);
  };
  // The slices of two chunks are in flight; those of an all_reduce in their place in `out`.
  const auto slot = to_all ? 0 : chunks.slice(0, 0).count * element;
  auto* const memory = to_all ? nullptr : scratch_.at_least(2 * slot);
  const auto own = [&](std::size_t t) {
    const auto slice = chunks.slice(t, topology_.place());
    return to_all ? result(slice) : elements(memory + t % 2 * slot, dtype, slice.count);
  };
  const auto finish = [&](std::size_t t) {
    const auto slice = own(t);
    if (leads) wait_lane();
    if (!has_result) return;
    if (leads)
      last_step(op, slice.data, static_cast<std::size_t>(slice.shape.numel()), topology_.size());
    Op gather = inner_rows(to_all ? Operation::all_gather : Operation::gather, chunks, t);
    gather.in = slice;
    if (!to_all) gather.root = topology_.place_of(op.root);
    if (to_all ||
        topology_.ranks_of(root_host)[static_cast<std::size_t>(topology_.place())] == op.root)
      gather.out = result(chunks.chunk(t));
    inner(gather);
  };
  for (std::size_t t = 0; t < chunks.size(); ++t) {
    const auto chunk = chunks.chunk(t);
    Op scatter = inner_rows(Operation::reduce_scatter, chunks, t);
    scatter.in = elements(at(op.in, chunk.from * element), dtype, chunk.count);
    scatter.out = own(t);
    scatter.reduce = first_step(op);
    inner(scatter);
    if (leads) {
      const auto slice = own(t);
      Op step{.kind = op.kind, .in = slice, .reduce = later_step(op), .root = root_host};
      if (has_result) step.out = slice;
      start_lane(step);
    }
    if (t > 0) finish(t - 1);
  }
  finish(chunks.size() - 1);
}

void Collectives::broadcast(const Op& op) {
  // Of bytes: the slices of a chunk need not end between elements.
  const Chunks chunks(topology_, op.in.bytes(), 1);
  const bool leads = in_lane(chunks.lanes());
  const int root_host = topology_.host_of(op.root);
  const bool at_root_host = topology_.host() == root_host;
  auto* const data = static_cast<std::byte*>(const_cast<void*>(op.in.data));
  const auto own = [&](std::size_t t) {
    const auto slice = chunks.slice(t, topology_.place());
    return elements(data + slice.from, DType::u8, slice.count);
  };
  const auto whole = [&](std::size_t t) {
    const auto chunk = chunks.chunk(t);
    return elements(data + chunk.from, DType::u8, chunk.count);
  };
  const auto finish = [&](std::size_t t) {
    if (leads) wait_lane();
    if (at_root_host) return;
    Op gather = inner_rows(Operation::all_gather, chunks, t);
    gather.in = own(t);
    gather.out = whole(t);
    inner(gather);
  };
  if (!at_root_host) inner_barrier();
  for (std::size_t t = 0; t < chunks.size(); ++t) {
    if (at_root_host)
      inner({.kind = Operation::broadcast,
             .in = whole(t),
             .out = whole(t),
             .root = topology_.place_of(op.root)});
    if (leads)
      start_lane({.kind = Operation::broadcast, .in = own(t), .out = own(t), .root = root_host});
    if (t > 0) finish(t - 1);
  }
  finish(chunks.size() - 1);
}

void Collectives::all_gather(const Op& op) {
  const HostBlocks blocks(topology_, op.rows, op.out.row_bytes(), 1);
  const auto hosts = static_cast<std::size_t>(topology_.hosts());
  const auto here = static_cast<std::size_t>(topology_.host());
  const bool leads = in_lane(blocks.lanes());
  // The data of a host is collected in its place in `out` if that is one range, and otherwise in
  // memory of its own. Two results of the lane are in flight.
  std::size_t apart = 0;
  for (std::size_t h = 0; h < hosts; ++h)
    if (!blocks.is_range(h)) apart += blocks.count(h);
  auto* memory = scratch_.at_least(apart + 2 * blocks.most_in_lane());
  std::vector<std::byte*> data(hosts);
  for (std::size_t h = 0; h < hosts; ++h) {
    if (blocks.is_range(h)) {
      data[h] = at(op.out, blocks.range(h));
      continue;
    }
    data[h] = memory;
    memory += blocks.count(h);
  }

  rows_.clear();
  for (const int r : topology_.ranks_of(topology_.host()))
    rows_.push_back(static_cast<std::int64_t>(blocks.block(r)));
  inner({.kind = Operation::all_gather,
         .in = elements(op.in.data, DType::u8, op.in.bytes()),
         .out = elements(data[here], DType::u8, blocks.count(here)),
         .rows = Rows(rows_)});

  const auto slice = [&](std::size_t h, std::size_t t) {
    return blocks.chunks(h).slice(t, topology_.place());
  };
  const auto finish = [&](std::size_t t) {
    if (leads) wait_lane();
    auto* from = memory + t % 2 * blocks.most_in_lane();
    for (std::size_t h = 0; h < hosts; ++h) {
      const auto own = slice(h, t);
      const auto chunk = blocks.chunks(h).chunk(t);
      if (h != here && chunk.count != 0) {
        Op gather = inner_rows(Operation::all_gather, blocks.chunks(h), t);
        gather.in = elements(from, DType::u8, own.count);
        gather.out = elements(data[h] + chunk.from, DType::u8, chunk.count);
        inner(gather);
      }
      from += own.count;
    }
  };
  std::vector<std::int64_t> slices(hosts);
  for (std::size_t t = 0; t < blocks.size(); ++t) {
    if (leads) {
      std::size_t sum = 0;
      for (std::size_t h = 0; h < hosts; ++h) {
        slices[h] = static_cast<std::int64_t>(slice(h, t).count);
        sum += slice(h, t).count;
      }
      const auto own = slice(here, t);
      start_lane({.kind = Operation::all_gather,
                  .in = elements(data[here] + own.from, DType::u8, own.count),
                  .out = elements(memory + t % 2 * blocks.most_in_lane(), DType::u8, sum),
                  .rows = Rows(slices)});
    }
    if (t > 0) finish(t - 1);
  }
  finish(blocks.size() - 1);

  for (std::size_t h = 0; h < hosts; ++h) {
    if (blocks.is_range(h)) continue;
    const auto* from = data[h];
    for (const int r : topology_.ranks_of(static_cast<int>(h))) {
      copy(at(op.out, blocks.offset(r)), from, blocks.block(r));
      from += blocks.block(r);
    }
  }
}

void Collectives::reduce_scatter(const Op& op) {
  const auto dtype = op.out.dtype;
  const auto element = size_of(dtype);
  const HostBlocks blocks(topology_, op.rows, static_cast<std::size_t>(op.out.shape.row_numel()),
                          element);
  const auto hosts = static_cast<std::size_t>(topology_.hosts());
  const auto here = static_cast<std::size_t>(topology_.host());
  const bool leads = in_lane(blocks.lanes());
  // The blocks of a host that are not one range are copied together. Then come the reduced blocks
  // of this host, and the input and the result of two calls of the lane.
  std::size_t apart = 0;
  for (std::size_t h = 0; h < hosts; ++h)
    if (!blocks.is_range(h)) apart += blocks.count(h);
  const auto slot = blocks.most_in_lane();
  auto* memory = scratch_.at_least((apart + blocks.count(here) + 4 * slot) * element);
  const auto take = [&](std::size_t count) {
    return std::exchange(memory, memory + count * element);
  };
  std::vector<const std::byte*> data(hosts);
  for (std::size_t h = 0; h < hosts; ++h) {
    if (blocks.is_range(h)) {
      data[h] = at(op.in, blocks.range(h) * element);
      continue;
    }
    data[h] = take(blocks.count(h));
    auto* to = memory - blocks.count(h) * element;
    for (const int r : topology_.ranks_of(static_cast<int>(h))) {
      copy(to, at(op.in, blocks.offset(r) * element), blocks.block(r) * element);
      to += blocks.block(r) * element;
    }
  }
  auto* const reduced = take(blocks.count(here));
  auto* const inputs = take(2 * slot);
  auto* const results = take(2 * slot);

  const auto slice = [&](std::size_t h, std::size_t t) {
    return blocks.chunks(h).slice(t, topology_.place());
  };
  const auto finish = [&](std::size_t t) {
    if (leads) wait_lane();
    const auto chunk = blocks.chunks(here).chunk(t);
    if (chunk.count == 0) return;
    Op gather = inner_rows(Operation::all_gather, blocks.chunks(here), t);
    gather.in = elements(results + t % 2 * slot * element, dtype, slice(here, t).count);
    gather.out = elements(reduced + chunk.from * element, dtype, chunk.count);
    inner(gather);
  };
  std::vector<std::int64_t> slices(hosts);
  for (std::size_t t = 0; t < blocks.size(); ++t) {
    auto* const input = inputs + t % 2 * slot * element;
    std::size_t sum = 0;
    for (std::size_t h = 0; h < hosts; ++h) {
      const auto chunk = blocks.chunks(h).chunk(t);
      const auto own = slice(h, t).count;
      Op scatter = inner_rows(Operation::reduce_scatter, blocks.chunks(h), t);
      scatter.in = elements(data[h] + chunk.from * element, dtype, chunk.count);
      scatter.out = elements(input + sum * element, dtype, own);
      scatter.reduce = first_step(op);
      inner(scatter);
      slices[h] = static_cast<std::int64_t>(own);
      sum += own;
    }
    if (leads)
      start_lane({.kind = Operation::reduce_scatter,
                  .in = elements(input, dtype, sum),
                  .out = elements(results + t % 2 * slot * element, dtype, slice(here, t).count),
                  .rows = Rows(slices),
                  .reduce = later_step(op)});
    if (t > 0) finish(t - 1);
  }
  finish(blocks.size() - 1);

  std::size_t before = 0;
  for (int p = 0; p < topology_.place(); ++p)
    before += blocks.block(topology_.ranks_of(topology_.host())[static_cast<std::size_t>(p)]);
  copy(op.out.data, reduced + before * element, op.out.bytes());
  last_step(op, op.out.data, static_cast<std::size_t>(op.out.shape.numel()), topology_.size());
}

}  // namespace tutti::backend::hier
