#include "collectives/algorithms.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

#include <fmt/format.h>

#include "collectives/blocks.hpp"
#include "collectives/functions.hpp"
#include "collectives/reducer.hpp"
#include "values/fail.hpp"

namespace tutti::collectives {
namespace {

constexpr int any_size = std::numeric_limits<int>::max();
constexpr auto any_bytes = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t KiB = 1024;

enum class Order : std::uint8_t { any, fixed };
enum class Kind : std::uint8_t { any, waiting };  // waiting: the waiting thread moves messages.

struct Row {
  Operation operation;
  Order order;         ///< fixed: only for order_fixed and custom reductions that do not commute.
  int size;            ///< Largest number of ranks for which the row is chosen.
  std::int64_t bytes;  ///< Largest number of bytes for which the row is chosen.
  Algorithm algorithm;
  void (*run)(Wire& wire, const Op& op);
  Kind wires = Kind::any;  ///< The wires for which the row is chosen.

  constexpr bool is_for(bool wakes_a_thread) const { return wires == Kind::any || !wakes_a_thread; }
};

// The first row that fits is used. Measured over TCP: docs/performance.md.
constexpr auto table = [] {
  using enum Operation;
  using enum Order;
  using enum Algorithm;
  return std::to_array<Row>({
      {all_reduce, any, 2, 384 * KiB, direct, all_reduce_direct},
      {all_reduce, any, 2, any_bytes, slices, all_reduce_slices},
      {all_reduce, any, 4, 16 * KiB, direct, all_reduce_direct},
      {all_reduce, any, 4, 128 * KiB, slices, all_reduce_slices, Kind::waiting},
      {all_reduce, fixed, any_size, any_bytes, slices, all_reduce_slices},
      {all_reduce, any, any_size, 128 * KiB, recursive_doubling, all_reduce_recursive_doubling},
      {all_reduce, any, any_size, any_bytes, ring, all_reduce_ring},
      {reduce, any, any_size, 64 * KiB, direct, reduce_direct},
      {reduce, fixed, any_size, any_bytes, slices, reduce_slices},
      {reduce, any, any_size, any_bytes, chain, reduce_chain},
      {all_gather, any, any_size, 256 * KiB, direct, all_gather_direct},
      {all_gather, any, 2, any_bytes, direct, all_gather_direct},
      {all_gather, any, any_size, any_bytes, ring, all_gather_ring},
      {all_gather_bounded, any, any_size, any_bytes, direct, all_gather_bounded_direct},
      {reduce_scatter, any, any_size, 256 * KiB, direct, reduce_scatter_direct},
      {reduce_scatter, fixed, any_size, any_bytes, direct, reduce_scatter_direct},
      {reduce_scatter, any, 2, any_bytes, direct, reduce_scatter_direct},
      {reduce_scatter, any, any_size, any_bytes, ring, reduce_scatter_ring},
      {broadcast, any, any_size, 64 * KiB, binomial_tree, broadcast_binomial_tree},
      {broadcast, any, any_size, any_bytes, chain, broadcast_chain},
      {gather, any, any_size, any_bytes, direct, gather_direct},
      {scatter, any, any_size, any_bytes, direct, scatter_direct},
      {all_to_all, any, any_size, any_bytes, direct, all_to_all_direct},
      {scan, any, any_size, 16 * KiB, direct, scan_direct},
      {scan, fixed, any_size, any_bytes, direct, scan_direct},
      {scan, any, any_size, any_bytes, chain, reduce_chain},
      {exclusive_scan, any, any_size, 16 * KiB, direct, scan_direct},
      {exclusive_scan, fixed, any_size, any_bytes, direct, scan_direct},
      {exclusive_scan, any, any_size, any_bytes, chain, reduce_chain},
      {barrier, any, any_size, any_bytes, dissemination, barrier_dissemination},
  });
}();

/// The size by which the table chooses, equal on all ranks: the bytes of the whole array, all
/// blocks together. 0 for operations that have one algorithm.
std::int64_t bytes_of(const Op& op) {
  switch (op.kind) {
    case Operation::all_gather:
      return static_cast<std::int64_t>(op.out.bytes());
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
    case Operation::broadcast:
    case Operation::scan:
    case Operation::exclusive_scan:
      return static_cast<std::int64_t>(op.in.bytes());
    default:
      return 0;
  }
}

/// Runs an operation in a group of one rank: no messages, the same arithmetic.
void run_alone(const Op& op) {
  const auto bytes = op.in.bytes();
  const Reducer reducer(op, 1);
  switch (op.kind) {
    case Operation::barrier:
      return;
    case Operation::exclusive_scan:
      return reducer.identity(op.out.data, bytes);
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
    case Operation::scan: {
      const void* inputs[] = {op.in.data};
      const double scales[] = {op.reduce.scale};
      return reducer.fold(op.out.data, inputs, scales, bytes);
    }
    default:
      return copy_bytes(op.out.data, op.in.data, bytes);
  }
}

/// Runs the algorithm of the table's first row for this operation for which fits(row) is true.
template <typename Fits>
void run_row(Wire& wire, const Op& op, const Fits& fits) {
  if (wire.size() == 1) return run_alone(op);
  const auto* row =
      std::ranges::find_if(table, [&](const Row& r) { return r.operation == op.kind && fits(r); });
  if (row == table.end())
    internal::failf(Errc::backend, "the algorithm table has no row for {}",
                    tutti::name_of(op.kind));
  row->run(wire, op);
}

/// True if a partial sum may be infinite although the average is not. Sums of f32 and bf16 have the
/// range of the accumulation type.
bool sum_may_overflow(const Op& op) {
  const auto dtype = op.in.dtype;
  return op.reduce.kind == ReduceOp::Kind::avg && is_float(dtype) && size_of(dtype) <= 2 &&
         dtype != DType::bf16;
}

std::string limit(std::int64_t value, std::int64_t any) {
  return value == any ? "any" : fmt::format("<= {}", value);
}

}  // namespace

std::string_view name_of(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::direct:
      return "direct";
    case Algorithm::recursive_doubling:
      return "recursive_doubling";
    case Algorithm::ring:
      return "ring";
    case Algorithm::slices:
      return "slices";
    case Algorithm::binomial_tree:
      return "binomial_tree";
    case Algorithm::chain:
      return "chain";
    case Algorithm::dissemination:
      return "dissemination";
  }
  return "?";
}

void run_collective(Wire& wire, const Op& op, bool order_fixed) {
  const auto bytes = bytes_of(op);
  const auto& reduce = op.reduce;
  const bool fixed = order_fixed || op.reproducible ||
                     (reduce.kind == ReduceOp::Kind::custom && !reduce.commutative) ||
                     sum_may_overflow(op);
  run_row(wire, op, [&](const Row& row) {
    return row.is_for(wire.wakes_a_thread()) && (row.order == Order::any || fixed) &&
           wire.size() <= row.size && bytes <= row.bytes;
  });
}

void run_collective(Wire& wire, const Op& op, Algorithm algorithm) {
  run_row(wire, op, [&](const Row& row) { return row.algorithm == algorithm; });
}

std::string describe_table(bool wakes_a_thread) {
  auto text = fmt::format(
      "algorithms where {} messages:\n{:<20}{:<13}{:<8}{:<12}{}\n",
      wakes_a_thread ? "a thread of the transport moves" : "the thread that waits moves",
      "operation", "", "ranks", "bytes", "algorithm");
  for (const auto& row : table)
    if (row.is_for(wakes_a_thread))
      text += fmt::format("{:<20}{:<13}{:<8}{:<12}{}\n", tutti::name_of(row.operation),
                          row.order == Order::fixed ? "order_fixed" : "", limit(row.size, any_size),
                          limit(row.bytes, any_bytes), name_of(row.algorithm));
  return text;
}

}  // namespace tutti::collectives
