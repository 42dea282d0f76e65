#include "conformance/cells.hpp"

#include <algorithm>
#include <numeric>

#include "support/dtypes.hpp"

namespace tutti::test {

namespace {

/// Checked mode treats the elements as normal mode does, and backends over a network by the kernels
/// of local and shm.
std::vector<DType> matrix_dtypes(const World& world) {
  if (reduced() || ((world.checked || shares_fate(world.backend)) && !everything()))
    return {DType::i8, DType::u64, DType::boolean, DType::bf16, DType::f32, DType::complex64};
  return {all_dtypes.begin(), all_dtypes.end()};
}

std::vector<MoveCell> make_move_cells(const std::vector<World>& in) {
  std::vector<MoveCell> cells;
  for (const World& world : in)
    for (const DType dtype : matrix_dtypes(world)) cells.push_back({world, dtype});
  return cells;
}

}  // namespace

std::string to_string(const MoveCell& cell) {
  return to_string(cell.world) + "_" + std::string(name_of(cell.dtype));
}

std::ostream& operator<<(std::ostream& out, const MoveCell& cell) {
  return out << to_string(cell);
}

std::vector<MoveCell> move_cells() {
  return make_move_cells(reduced() ? worlds({1, 3}) : worlds());
}

std::vector<MoveCell> move_cells_of_several() {
  return make_move_cells(reduced() ? worlds({3}) : worlds_of_several());
}

std::string to_string(const ReduceCell& cell) {
  return to_string(MoveCell{cell.world, cell.dtype}) + "_" + std::string(name_of(cell.kind));
}

std::ostream& operator<<(std::ostream& out, const ReduceCell& cell) {
  return out << to_string(cell);
}

std::vector<ReduceCell> reduce_cells() {
  std::vector<ReduceCell> cells;
  for (const MoveCell& cell : move_cells())
    for (const ReduceOp::Kind kind : kinds_of(cell.dtype))
      if (reduces(cell.world.backend, cell.dtype, kind))
        cells.push_back({cell.world, cell.dtype, kind});
  return cells;
}

std::vector<ReduceCell> scan_cells() {
  std::vector<ReduceCell> cells = reduce_cells();
  std::erase_if(cells, [](const ReduceCell& cell) { return cell.kind == ReduceOp::Kind::avg; });
  return cells;
}

std::vector<std::int64_t> counts() {
  if (reduced()) return {1, 17, 1000};
  return {1, 3, 17, 1000, 4099};
}

std::string to_string(const Variant& variant) {
  return std::string(variant.fill == Fill::rough ? "rough" : "exact") +
         (variant.order_fixed ? ", order_fixed" : "") +
         (variant.reproducible ? ", reproducible" : "");
}

std::vector<Variant> variants(const std::string& backend, DType dtype, ReduceOp::Kind kind) {
  using Kind = ReduceOp::Kind;
  std::vector<Variant> all{{Fill::exact, false}};
  if (can_fix_order(backend)) all.push_back({Fill::rough, true});
  if (always_order_fixed(backend)) all.push_back({Fill::rough, false});
  const bool sums = kind == Kind::sum || kind == Kind::avg || kind == Kind::premul_sum;
  if (sums && (is_float(dtype) || is_complex(dtype)) && reproduces(backend))
    all.push_back({Fill::rough, false, true});
  return all;
}

CallOptions options_of(const Variant& variant) {
  return {.order_fixed = variant.order_fixed,
          .reproducible = variant.reproducible,
          .integer_avg = true};
}

Array result_of(const Variant& variant, ReduceOp::Kind kind, std::span<const Array> inputs,
                std::span<const double> scales) {
  return variant.reproducible ? reduce_reproducibly(kind, inputs, scales)
                              : reduce_in_order(kind, inputs, scales);
}

std::string to_string(const Layout& layout) {
  std::string text;
  for (const std::int64_t rows : layout) text += (text.empty() ? "{" : ", ") + std::to_string(rows);
  return text + "}";
}

std::vector<Layout> layouts(int size) {
  Layout equal;
  Layout uneven;
  Layout some_empty;
  Layout only_first;
  Layout only_last;
  for (int r = 0; r < size; ++r) {
    equal.push_back(2);
    uneven.push_back(1 + r);
    some_empty.push_back(r % 2 == 0 ? 0 : 3 + r);
    only_first.push_back(r == 0 ? 7 : 0);
    only_last.push_back(r == size - 1 ? 5 : 0);
  }
  std::vector<Layout> all{equal, uneven, some_empty, only_first, only_last};
  // With few ranks some of these are equal.
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

bool is_equal(const Layout& layout) {
  return std::ranges::all_of(layout, [&](std::int64_t rows) { return rows == layout[0]; });
}

std::int64_t total(const Layout& layout) {
  return std::accumulate(layout.begin(), layout.end(), std::int64_t{0});
}

std::int64_t offset(const Layout& layout, int rank) {
  return std::accumulate(layout.begin(), layout.begin() + rank, std::int64_t{0});
}

std::vector<Rows> spellings(const Layout& layout) {
  std::vector<Rows> all{Rows(layout)};
  if (is_equal(layout)) all.insert(all.end(), {Rows(layout[0]), Rows()});
  return all;
}

Shape rows_of(std::int64_t rows, const Shape& row_shape) {
  std::vector<std::int64_t> dims{rows};
  dims.insert(dims.end(), row_shape.dims().begin(), row_shape.dims().end());
  return Shape(dims);
}

std::vector<Array> make_parts(DType dtype, const Layout& layout, const Shape& row_shape,
                              std::uint64_t salt) {
  std::vector<Array> parts;
  for (std::size_t r = 0; r < layout.size(); ++r)
    parts.push_back(make_input(dtype, rows_of(layout[r], row_shape), static_cast<int>(r),
                               static_cast<int>(layout.size()), Fill::bits, ReduceOp::Kind::sum,
                               salt));
  return parts;
}

void expect_usable(ProcessGroup& group) {
  Buffer data(group, array_of<std::int32_t>({group.rank() + 1, 100}));
  group.all_reduce(data);
  const int n = group.size();
  EXPECT_TRUE(same(data.read(), array_of<std::int32_t>({n * (n + 1) / 2, 100 * n})));
}

}  // namespace tutti::test
