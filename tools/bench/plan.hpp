#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
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
  bool all = false;    ///< "all" was asked for: what does not exist is left out with a note.
  bool given = false;  ///< The option was on the command line.

  /// One that is named twice counts once.
  void add(const T& value) {
    if (std::ranges::find(values, value) == values.end()) values.push_back(value);
  }
};

/// What the user asked for.
struct Request {
  Choice<const Collective*> collectives{};
  Choice<DType> dtypes{{DType::f32}, false, false};
  Choice<ReduceOp::Kind> ops{{ReduceOp::Kind::sum}, false, false};
  Choice<PlaceMode> places{{PlaceMode::out}, false, false};
  Choice<Counts> counts{{Counts()}, false, false};
  std::vector<Size> sizes{};  ///< Empty: the default sweep.
  std::optional<int> root{};  ///< Empty: 0.
  bool all_roots = false;
  Order order = Order::size;
  std::uint64_t seed = 0;
};

/// One sweep: sizes of the same call.
struct Block {
  const Collective* collective = nullptr;
  DType dtype = DType::f32;
  std::optional<ReduceOp::Kind> op{};
  std::optional<int> root{};
  std::optional<PlaceMode> place{};
  std::optional<Counts> counts{};     ///< Empty where S is not cut.
  std::vector<std::int64_t> bytes{};  ///< In the order in which they are measured.

  Key key() const;  ///< Of its rows.
  /// @throws Failure usage when so many ranks cannot be laid out as `counts` says.
  Cell cell(int ranks, int rank, std::int64_t size_bytes) const;
  /// The most that a rank needs for the arrays of this size.
  std::size_t footprint(int ranks, std::int64_t size_bytes) const;
};

struct Plan {
  std::vector<Block> blocks{};
  std::vector<std::string> notes{};  ///< What was left out.
  std::int64_t rows() const noexcept;
  /// Of everything that has to be the same on every rank: options, or a file that --counts names,
  /// may differ between hosts.
  std::string fingerprint(int ranks) const;
};

/// The same on every rank.
/// @throws Failure usage, for what cannot be measured on so many ranks.
Plan make_plan(const Request& request, int ranks);

/// @throws Failure usage when the largest case needs more than `free_bytes` for `local_ranks`.
void check_memory(const Plan& plan, int ranks, int local_ranks, std::int64_t free_bytes);

}  // namespace tutti::tool
