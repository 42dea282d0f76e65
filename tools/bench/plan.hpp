#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/dtype.hpp>
#include <tutti/reduce_op.hpp>

#include "bench/collectives.hpp"
#include "bench/counts.hpp"
#include "bench/record.hpp"
#include "bench/sizes.hpp"

namespace tutti::tool {

enum class Order : std::uint8_t { size, random };
template <>
inline constexpr Names<2> names_of<Order>{"size", "random"};

/// The values of an option.
template <typename T>
struct Choice {
  std::vector<T> values{};
  bool all = false;    ///< "all" was given: calls that do not exist are left out with a note.
  bool given = false;  ///< The option was on the command line.

  /// Adds a value; duplicates count once.
  void add(const T& value) {
    if (std::ranges::find(values, value) == values.end()) values.push_back(value);
  }
};

/// The sweep without --sizes: from latency to bandwidth in a few seconds.
inline constexpr std::string_view default_sizes = "8:16M:x8";

/// The user's request.
struct Request {
  Choice<const Collective*> collectives{};
  Choice<DType> dtypes{{DType::f32}, false, false};
  Choice<ReduceOp::Kind> ops{{ReduceOp::Kind::sum}, false, false};
  Choice<PlaceMode> places{{PlaceMode::out}, false, false};
  Choice<Counts> counts{{Counts()}, false, false};
  std::vector<Size> sizes{};  ///< Empty: default_sizes.
  std::optional<int> root{};  ///< Empty: 0.
  bool all_roots = false;
  Order order = Order::size;
  std::uint64_t seed = 0;
  std::string_view async_for{};  ///< The option that needs asynchronous calls; empty: none.
};

/// One sweep: the same call in several sizes.
struct Block {
  const Collective* collective = nullptr;
  DType dtype = DType::f32;
  std::optional<ReduceOp::Kind> op{};
  std::optional<int> root{};
  std::optional<PlaceMode> place{};
  std::optional<Counts> counts{};     ///< Empty if S is not divided.
  std::vector<std::int64_t> bytes{};  ///< Sizes, in the order of measurement.

  Key key() const;  ///< The settings that its rows share.
  /// @throws Failure usage if `counts` does not allow this number of ranks.
  Cell cell(int ranks, int rank, std::int64_t size_bytes) const;
  /// The largest footprint of a rank for this size, in bytes.
  std::size_t footprint(int ranks, std::int64_t size_bytes) const;
};

struct Plan {
  std::vector<Block> blocks{};
  std::vector<std::string> notes{};  ///< Notes about calls that were left out.
  std::int64_t rows() const noexcept;
  /// Fingerprint of everything that must be equal on all ranks, because options or a file of
  /// --counts may differ between hosts.
  std::string fingerprint(int ranks) const;
};

/// Makes the plan, the same on every rank. @throws Failure usage for a request that this number of
/// ranks cannot run.
Plan make_plan(const Request& request, int ranks);

/// @param copies  sets of buffers of a call.
/// @throws Failure usage if the largest case of `local_ranks` ranks exceeds `free_bytes`.
void check_memory(const Plan& plan, int ranks, int local_ranks, std::int64_t free_bytes,
                  std::int64_t copies = 1);

}  // namespace tutti::tool
