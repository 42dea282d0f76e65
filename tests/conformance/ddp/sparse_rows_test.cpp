#include <tutti/ddp/sparse_rows.hpp>

#include <cmath>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"

namespace tutti::test {
namespace {

using ddp::all_reduce_rows;
using ddp::SparseRows;
using ddp::SparseRowsOptions;

class SparseGradients : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, SparseGradients, testing::ValuesIn(worlds()), CaseName());

class SparseGradientsOfSeveral : public SparseGradients {};
INSTANTIATE_TEST_SUITE_P(Worlds, SparseGradientsOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

constexpr std::int64_t width = 3;

/// Rows with indices from 0 to most - 1, not ordered and partly equal.
struct Gradient {
  std::vector<std::int64_t> indices;
  Array rows;
};

std::vector<Gradient> make_gradients(DType dtype, const Layout& layout, std::uint64_t most) {
  const int size = static_cast<int>(layout.size());
  std::vector<Gradient> all;
  for (int rank = 0; rank < size; ++rank) {
    Gradient& mine = all.emplace_back();
    for (std::int64_t i = 0; i < layout[index(rank)]; ++i)
      mine.indices.push_back(static_cast<std::int64_t>(
          mix(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(rank)) % most));
    mine.rows = make_input(dtype, {layout[index(rank)], width}, rank, size, Fill::rough);
  }
  return all;
}

/// Adds the rows of each index one by one, in rank order.
Gradient sum_of(const std::vector<Gradient>& all, DType dtype, std::uint64_t most) {
  Gradient sum;
  std::vector<Array> rows;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(most); ++i) {
    std::vector<Array> parts;
    for (const Gradient& g : all)
      for (std::size_t k = 0; k < g.indices.size(); ++k)
        if (g.indices[k] == i) parts.push_back(g.rows.rows(static_cast<std::int64_t>(k), 1));
    if (parts.empty()) continue;
    sum.indices.push_back(i);
    rows.push_back(reduce_in_order(ReduceOp::Kind::sum, parts));
  }
  sum.rows = rows.empty() ? Array(dtype, {0, width}) : concat(rows);
  return sum;
}

template <typename Index>
Array array_from(const std::vector<std::int64_t>& values) {
  Array array(dtype_of<Index>, {std::ssize(values)});
  for (std::size_t i = 0; i < values.size(); ++i)
    array.put<Index>(static_cast<std::int64_t>(i), static_cast<Index>(values[i]));
  return array;
}

template <typename Index>
void expect_sum(ProcessGroup& group, const std::vector<Gradient>& all, const Gradient& want,
                const SparseRowsOptions& options = {}, const RowLayout& layout = {}) {
  const Gradient& mine = all[index(group.rank())];
  const Buffer indices(group, array_from<Index>(mine.indices));
  const Buffer rows(group, mine.rows);
  const SparseRows sum = all_reduce_rows(group, indices, rows, options, layout);
  EXPECT_TRUE(same_bits(content_of(group, sum.indices), array_from<Index>(want.indices)));
  EXPECT_TRUE(same_bits(content_of(group, sum.values), want.rows));
}

TEST_P(SparseGradients, EqualIndicesAreAddedInRankOrder) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::complex64})
    for (const Layout& layout : layouts(world().size)) {
      const auto all = make_gradients(dtype, layout, 5);
      const auto want = sum_of(all, dtype, 5);
      on_ranks(world(), [&](ProcessGroup& group) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " " + to_string(layout));
        expect_sum<std::int64_t>(group, all, want);
        expect_sum<std::int32_t>(group, all, want, {.num_rows = 5});
        expect_sum<std::int64_t>(group, all, want, {}, RowLayout(layout));
      });
    }
}

// Too many rows to be inlined in the exchange of sizes.
TEST_P(SparseGradients, ManyRowsAreAddedAsFewAre) {
  const Layout layout(index(world().size), 9000);
  const auto all = make_gradients(DType::f32, layout, 700);
  const auto want = sum_of(all, DType::f32, 700);
  on_ranks(world(), [&](ProcessGroup& group) { expect_sum<std::int64_t>(group, all, want); });
}

TEST_P(SparseGradients, NoRowsAnywhereAreNoRows) {
  const std::vector<Gradient> all(index(world().size), {{}, Array(DType::f32, {0, width})});
  on_ranks(world(), [&](ProcessGroup& group) {
    expect_sum<std::int64_t>(group, all, {{}, Array(DType::f32, {0, width})});
  });
}

TEST_P(SparseGradients, TheSumIsDividedOnce) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int n = group.size();
    const Buffer indices(group, array_of<std::int64_t>({7, 7}));
    const Buffer rows(group, array_of<float>({6, 2}));
    const auto sum = [&](double divisor) {
      const SparseRows all = all_reduce_rows(group, indices, rows, {.divisor = divisor});
      return content_of(group, all.values);
    };
    EXPECT_TRUE(same(sum(1), array_of<float>({8.0F * static_cast<float>(n)})));
    EXPECT_TRUE(same(sum(0), array_of<float>({8})));
    EXPECT_TRUE(same(sum(4), array_of<float>({2.0F * static_cast<float>(n)})));
    for (const double wrong : {-1.0, HUGE_VAL, std::nan("")})
      expect_error(Errc::invalid_argument, {"all_reduce_rows", "divisor is", "must be > 0"},
                   [&] { (void)sum(wrong); });
  });
}

TEST_P(SparseGradients, AWrongIndexIsNamedOnEveryRank) {
  const int last = world().size - 1;
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto refused = [&](std::int64_t wrong, std::int64_t num_rows, const char* text) {
      const Array mine = array_of<std::int64_t>({1, group.rank() == last ? wrong : 0});
      const Buffer indices(group, mine);
      const Buffer rows(group, DType::f32, {2, width});
      expect_error(
          Errc::invalid_argument,
          {"index 1 of rank " + std::to_string(last) + " is " + std::to_string(wrong), text},
          [&] { (void)all_reduce_rows(group, indices, rows, {.num_rows = num_rows}); });
      expect_usable(group);
    };
    refused(-3, 0, "0 or more");
    refused(10, 10, "from 0 to 9");
  });
}

TEST_P(SparseGradients, ArraysThatCannotBeAddedAreRefusedByName) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer rows(group, DType::f32, {2, width});
    const Buffer wrong_type(group, DType::f32, {2});
    expect_error(Errc::invalid_argument, {"indices are f32 [", "must be [n] of i32 or i64"},
                 [&] { (void)all_reduce_rows(group, wrong_type, rows); });
    const Buffer wrong_shape(group, DType::i64, {2, 1});
    expect_error(Errc::invalid_argument, {"indices are i64 [", "must be [n] of i32 or i64"},
                 [&] { (void)all_reduce_rows(group, wrong_shape, rows); });
    const Buffer indices(group, array_of<std::int64_t>({0, 1}));
    const Buffer integers(group, DType::i32, {2, width});
    expect_error(Errc::unsupported, {"values are i32", "f16, bf16, f32, f64 or complex"},
                 [&] { (void)all_reduce_rows(group, indices, integers); });
    expect_usable(group);
  });
}

TEST_P(SparseGradientsOfSeveral, OtherRowsAreAMismatchOnEveryRank) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer indices(group, array_of<std::int64_t>({0, 1}));
    const Buffer rows(group, DType::f32, {2, group.rank() == 0 ? width : width + 1});
    expect_error(Errc::mismatch, {"[*, 3]", "[*, 4]"},
                 [&] { (void)all_reduce_rows(group, indices, rows); });
    const Buffer more(group, DType::f32, {group.rank() == 0 ? 3 : 2, width});
    expect_error({Errc::mismatch, Errc::invalid_argument}, {},
                 [&] { (void)all_reduce_rows(group, indices, more); });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
