#include "collectives/algorithms.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

#include <fmt/format.h>

#include "collectives/binomial_tree.hpp"
#include "collectives/blocks.hpp"
#include "collectives/chain.hpp"
#include "collectives/direct.hpp"
#include "collectives/direct_fold.hpp"
#include "collectives/dissemination.hpp"
#include "collectives/recursive_doubling.hpp"
#include "collectives/reducer.hpp"
#include "collectives/ring.hpp"
#include "collectives/slices.hpp"
#include "values/fail.hpp"

namespace tutti::collectives {
namespace {

constexpr int any_size = std::numeric_limits<int>::max();
constexpr auto any_bytes = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t KiB = 1024;

enum class Order : std::uint8_t { any, fixed };

struct Row {
  Operation operation;
  Order order;         ///< fixed: only for CallOptions::order_fixed.
  int size;            ///< Up to so many ranks
  std::int64_t bytes;  ///< and so many bytes.
  Algorithm algorithm;
  void (*run)(Wire& wire, const Op& op);
};

// The first row that fits counts. Measured over TCP: docs/gloo-benchmarks.md.
// clang-format off
constexpr Row table[] = {
    {Operation::all_reduce, Order::any, 2, 384 * KiB, Algorithm::direct, all_reduce_direct},
    {Operation::all_reduce, Order::any, 2, any_bytes, Algorithm::slices, all_reduce_slices},
    {Operation::all_reduce, Order::any, 4, 16 * KiB, Algorithm::direct, all_reduce_direct},
    {Operation::all_reduce, Order::fixed, any_size, any_bytes, Algorithm::slices, all_reduce_slices},
    {Operation::all_reduce, Order::any, any_size, 128 * KiB, Algorithm::recursive_doubling, all_reduce_recursive_doubling},
    {Operation::all_reduce, Order::any, any_size, any_bytes, Algorithm::ring, all_reduce_ring},
    {Operation::reduce, Order::any, any_size, 64 * KiB, Algorithm::direct, reduce_direct},
    {Operation::reduce, Order::fixed, any_size, any_bytes, Algorithm::slices, reduce_slices},
    {Operation::reduce, Order::any, any_size, any_bytes, Algorithm::chain, reduce_chain},
    {Operation::all_gather, Order::any, any_size, 256 * KiB, Algorithm::direct, all_gather_direct},
    {Operation::all_gather, Order::any, 2, any_bytes, Algorithm::direct, all_gather_direct},
    {Operation::all_gather, Order::any, any_size, any_bytes, Algorithm::ring, all_gather_ring},
    {Operation::all_gather_bounded, Order::any, any_size, any_bytes, Algorithm::direct, all_gather_bounded_direct},
    {Operation::reduce_scatter, Order::any, any_size, 256 * KiB, Algorithm::direct, reduce_scatter_direct},
    {Operation::reduce_scatter, Order::fixed, any_size, any_bytes, Algorithm::direct, reduce_scatter_direct},
    {Operation::reduce_scatter, Order::any, 2, any_bytes, Algorithm::direct, reduce_scatter_direct},
    {Operation::reduce_scatter, Order::any, any_size, any_bytes, Algorithm::ring, reduce_scatter_ring},
    {Operation::broadcast, Order::any, any_size, 64 * KiB, Algorithm::binomial_tree, broadcast_binomial_tree},
    {Operation::broadcast, Order::any, any_size, any_bytes, Algorithm::chain, broadcast_chain},
    {Operation::gather, Order::any, any_size, any_bytes, Algorithm::direct, gather_direct},
    {Operation::scatter, Order::any, any_size, any_bytes, Algorithm::direct, scatter_direct},
    {Operation::all_to_all, Order::any, any_size, any_bytes, Algorithm::direct, all_to_all_direct},
    {Operation::scan, Order::any, any_size, 16 * KiB, Algorithm::direct, scan_direct},
    {Operation::scan, Order::fixed, any_size, any_bytes, Algorithm::direct, scan_direct},
    {Operation::scan, Order::any, any_size, any_bytes, Algorithm::chain, reduce_chain},
    {Operation::exclusive_scan, Order::any, any_size, 16 * KiB, Algorithm::direct, scan_direct},
    {Operation::exclusive_scan, Order::fixed, any_size, any_bytes, Algorithm::direct, scan_direct},
    {Operation::exclusive_scan, Order::any, any_size, any_bytes, Algorithm::chain, reduce_chain},
    {Operation::barrier, Order::any, any_size, any_bytes, Algorithm::dissemination, barrier_dissemination},
};
// clang-format on

/// The bytes that the table looks at, equal on all ranks: the whole array, all blocks together. 0
/// for operations with one algorithm.
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

/// One rank: no wire, the same arithmetic.
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

/// By the first row of the operation that fits.
template <typename Fits>
void run_row(Wire& wire, const Op& op, const Fits& fits) {
  if (wire.size() == 1) return run_alone(op);
  const auto* row =
      std::ranges::find_if(table, [&](const Row& r) { return r.operation == op.kind && fits(r); });
  if (row == std::end(table))
    internal::failf(Errc::backend, "no algorithm for {} among collectives",
                    tutti::name_of(op.kind));
  row->run(wire, op);
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
  run_row(wire, op, [&](const Row& row) {
    return (row.order == Order::any || order_fixed) && wire.size() <= row.size &&
           bytes <= row.bytes;
  });
}

void run_collective(Wire& wire, const Op& op, Algorithm algorithm) {
  run_row(wire, op, [&](const Row& row) { return row.algorithm == algorithm; });
}

std::string describe_table() {
  auto text =
      fmt::format("{:<16}{:<13}{:<8}{:<12}{}\n", "operation", "", "ranks", "bytes", "algorithm");
  for (const auto& row : table)
    text += fmt::format("{:<16}{:<13}{:<8}{:<12}{}\n", tutti::name_of(row.operation),
                        row.order == Order::fixed ? "order_fixed" : "", limit(row.size, any_size),
                        limit(row.bytes, any_bytes), name_of(row.algorithm));
  return text;
}

}  // namespace tutti::collectives
