#include "collectives/table.hpp"

#include <limits>

#include <fmt/format.h>

namespace tutti::backend::gloo {
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
};

// The first row that fits counts. Measured: docs/gloo-benchmarks.md.
constexpr Row table[] = {
    {Operation::all_reduce, Order::any, 2, 384 * KiB, Algorithm::direct},
    {Operation::all_reduce, Order::any, 2, any_bytes, Algorithm::slices},
    {Operation::all_reduce, Order::any, 4, 16 * KiB, Algorithm::direct},
    {Operation::all_reduce, Order::fixed, any_size, any_bytes, Algorithm::slices},
    {Operation::all_reduce, Order::any, any_size, 128 * KiB, Algorithm::doubling},
    {Operation::all_reduce, Order::any, any_size, any_bytes, Algorithm::ring},
    {Operation::reduce, Order::any, any_size, 64 * KiB, Algorithm::direct},
    {Operation::reduce, Order::fixed, any_size, any_bytes, Algorithm::slices},
    {Operation::reduce, Order::any, any_size, any_bytes, Algorithm::chain},
    {Operation::all_gather, Order::any, any_size, 256 * KiB, Algorithm::direct},
    {Operation::all_gather, Order::any, 2, any_bytes, Algorithm::direct},
    {Operation::all_gather, Order::any, any_size, any_bytes, Algorithm::ring},
    {Operation::all_gather_bounded, Order::any, any_size, any_bytes, Algorithm::direct},
    {Operation::reduce_scatter, Order::any, any_size, 256 * KiB, Algorithm::direct},
    {Operation::reduce_scatter, Order::fixed, any_size, any_bytes, Algorithm::direct},
    {Operation::reduce_scatter, Order::any, 2, any_bytes, Algorithm::direct},
    {Operation::reduce_scatter, Order::any, any_size, any_bytes, Algorithm::ring},
    {Operation::broadcast, Order::any, any_size, 64 * KiB, Algorithm::tree},
    {Operation::broadcast, Order::any, any_size, any_bytes, Algorithm::chain},
    {Operation::gather, Order::any, any_size, any_bytes, Algorithm::direct},
    {Operation::scatter, Order::any, any_size, any_bytes, Algorithm::direct},
    {Operation::all_to_all, Order::any, any_size, any_bytes, Algorithm::direct},
    {Operation::scan, Order::any, any_size, 16 * KiB, Algorithm::direct},
    {Operation::scan, Order::fixed, any_size, any_bytes, Algorithm::direct},
    {Operation::scan, Order::any, any_size, any_bytes, Algorithm::chain},
    {Operation::exclusive_scan, Order::any, any_size, 16 * KiB, Algorithm::direct},
    {Operation::exclusive_scan, Order::fixed, any_size, any_bytes, Algorithm::direct},
    {Operation::exclusive_scan, Order::any, any_size, any_bytes, Algorithm::chain},
    {Operation::barrier, Order::any, any_size, any_bytes, Algorithm::dissemination},
};

std::string limit(std::int64_t value, std::int64_t any) {
  return value == any ? "any" : fmt::format("<= {}", value);
}

}  // namespace

std::string_view name_of(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::direct:
      return "direct";
    case Algorithm::doubling:
      return "doubling";
    case Algorithm::ring:
      return "ring";
    case Algorithm::slices:
      return "slices";
    case Algorithm::tree:
      return "tree";
    case Algorithm::chain:
      return "chain";
    case Algorithm::dissemination:
      return "dissemination";
  }
  return "?";
}

Algorithm choose(Operation operation, std::int64_t bytes, int size, bool order_fixed) noexcept {
  for (const auto& row : table)
    if (row.operation == operation && (row.order == Order::any || order_fixed) &&
        size <= row.size && bytes <= row.bytes)
      return row.algorithm;
  return Algorithm::direct;
}

std::int64_t table_bytes(const Op& op) noexcept {
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

std::string describe_table() {
  auto text =
      fmt::format("{:<16}{:<13}{:<8}{:<12}{}\n", "operation", "", "ranks", "bytes", "algorithm");
  for (const auto& row : table)
    text += fmt::format("{:<16}{:<13}{:<8}{:<12}{}\n", tutti::name_of(row.operation),
                        row.order == Order::fixed ? "order_fixed" : "", limit(row.size, any_size),
                        limit(row.bytes, any_bytes), name_of(row.algorithm));
  return text;
}

}  // namespace tutti::backend::gloo
