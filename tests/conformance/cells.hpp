#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/process_group.hpp>

#include "support/array.hpp"
#include "support/errors.hpp"
#include "support/inputs.hpp"
#include "support/ranks.hpp"
#include "support/reference.hpp"
#include "support/worlds.hpp"

// The cells of the matrix: the parameters of each case of the suite.

namespace tutti::test {

/// World x dtype: for calls that move data.
struct MoveCell {
  World world;
  DType dtype = DType::u8;
};
std::string to_string(const MoveCell& cell);
std::ostream& operator<<(std::ostream& out, const MoveCell& cell);
std::vector<MoveCell> move_cells();
std::vector<MoveCell> move_cells_of_several();  ///< With at least two ranks.

/// World x dtype x reduce op, for defined pairs.
struct ReduceCell {
  World world;
  DType dtype = DType::u8;
  ReduceOp::Kind kind = ReduceOp::Kind::sum;
};
std::string to_string(const ReduceCell& cell);
std::ostream& operator<<(std::ostream& out, const ReduceCell& cell);
std::vector<ReduceCell> reduce_cells();
std::vector<ReduceCell> scan_cells();  ///< Without avg, which scans do not support.

/// Elements per array: one; an odd number; enough for vectors, slices and remainders.
std::vector<std::int64_t> counts();

/// A form of a reduction whose bits are known.
struct Variant {
  Fill fill = Fill::exact;
  bool order_fixed = false;
  bool reproducible = false;
};
std::string to_string(const Variant& variant);
std::vector<Variant> variants(const std::string& backend, DType dtype, ReduceOp::Kind kind);

/// The options of a reduction of a variant; averages of integers truncate.
CallOptions options_of(const Variant& variant);
/// Its result over these ranks; `scales`, of premul_sum, are one per input.
Array result_of(const Variant& variant, ReduceOp::Kind kind, std::span<const Array> inputs,
                std::span<const double> scales);

/// Rows of each rank.
using Layout = std::vector<std::int64_t>;
std::string to_string(const Layout& layout);
/// Equal, uneven, with empty ranks, with all rows on one rank.
std::vector<Layout> layouts(int size);
bool is_equal(const Layout& layout);
std::int64_t total(const Layout& layout);
std::int64_t offset(const Layout& layout, int rank);  ///< Rows of the ranks before `rank`.

/// Every form of a layout in a call: a list; for equal layouts also a number, or nothing.
std::vector<Rows> spellings(const Layout& layout);

/// An array for each rank with the rows of its layout.
std::vector<Array> make_parts(DType dtype, const Layout& layout, const Shape& row_shape,
                              std::uint64_t salt = 0);

/// `rows` rows of this shape: [rows, ...].
Shape rows_of(std::int64_t rows, const Shape& row_shape);

/// Makes calls that succeed only on a usable group.
void expect_usable(ProcessGroup& group);

/// One i32.
inline Array number(int value) {
  return array_of<std::int32_t>({value});
}
/// Two i32 of a message.
inline Array message_of(int value) {
  return array_of<std::int32_t>({value, ~value});
}

/// The deadline of a call that ends sooner unless the library waits for something in vain.
inline const CallOptions soon{.timeout = std::chrono::seconds(5)};

/// The most bytes that a gather sends with its counts.
constexpr std::int64_t max_inlined = 65536;

inline std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

}  // namespace tutti::test
