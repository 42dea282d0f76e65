#include <tutti/gather.hpp>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"

namespace tutti::test {
namespace {

/// rows[i][j]: number of rows that rank i sends to rank j.
using Matrix = std::vector<Layout>;

Matrix transposed(const Matrix& rows) {
  Matrix columns(rows.size(), Layout(rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t j = 0; j < rows.size(); ++j) columns[j][i] = rows[i][j];
  return columns;
}

std::vector<Matrix> matrices(int size) {
  const std::size_t n = index(size);
  Matrix equal(n, Layout(n, 3));
  Matrix uneven(n, Layout(n));
  Matrix sparse(n, Layout(n));
  Matrix one_way(n, Layout(n));
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      uneven[i][j] = static_cast<std::int64_t>(1 + (2 * i + 5 * j) % 7);
      sparse[i][j] = static_cast<std::int64_t>((i + 2 * j) % 3 == 0 ? 0 : 1 + i + j);
      one_way[i][j] = i == 0 && j + 1 == n ? 4 : 0;  // Most ranks send and receive nothing.
    }
  return {equal, uneven, sparse, one_way};
}

class AllToAll : public testing::TestWithParam<MoveCell> {};
INSTANTIATE_TEST_SUITE_P(Matrix, AllToAll, testing::ValuesIn(move_cells()), CaseName());

TEST_P(AllToAll, SendsBlockJOfRankIToRankJ) {
  const World& world = GetParam().world;
  const DType dtype = GetParam().dtype;
  const int size = world.size;
  for (const Shape& row_shape : {Shape{}, Shape{7}, Shape{2, 65}}) {
    for (const Matrix& send : matrices(size)) {
      const Matrix recv = transposed(send);
      std::vector<Array> inputs;
      for (int r = 0; r < size; ++r)
        inputs.push_back(make_input(dtype, rows_of(total(send[index(r)]), row_shape), r, size,
                                    Fill::bits, ReduceOp::Kind::sum, 11));
      on_ranks(world, [&](ProcessGroup& group) {
        const int rank = group.rank();
        const Layout& send_rows = send[index(rank)];
        const Layout& recv_rows = recv[index(rank)];
        SCOPED_TRACE("sends " + to_string(send_rows) + ", receives " + to_string(recv_rows));
        std::vector<Array> blocks;
        for (int from = 0; from < size; ++from)
          blocks.push_back(inputs[index(from)].rows(offset(send[index(from)], rank),
                                                    send[index(from)][index(rank)]));
        const Array want = concat(blocks);

        const Buffer in(group, inputs[index(rank)]);
        const Buffer out(group, dtype, want.shape());
        group.all_to_all(in, out, send_rows, recv_rows);
        EXPECT_TRUE(same_bits(out.read(), want));
        EXPECT_TRUE(same_bits(in.read(), inputs[index(rank)])) << "the input was changed";

        const Buffer later(group, dtype, want.shape());
        Work work;
        {
          const Layout lent_send = send_rows;
          const Layout lent_recv = recv_rows;
          work = group.all_to_all_async(in, later, lent_send, lent_recv);
        }
        work.wait();
        EXPECT_TRUE(same_bits(later.read(), want)) << "asynchronously";

        const auto unknown = all_to_all_rows(group, in, send_rows);
        EXPECT_TRUE(same_bits(content_of(group, unknown.data), want)) << "of unknown counts";
        EXPECT_EQ(unknown.rows, RowLayout(recv_rows));
        const auto pending = all_to_all_rows_async(group, in, send_rows).get();
        EXPECT_TRUE(same_bits(content_of(group, pending.data), want)) << "asynchronously";
        EXPECT_EQ(pending.rows, RowLayout(recv_rows));

        if (send != matrices(size)[0]) return;
        for (const Rows& rows : {Rows(), Rows(3)}) {
          const Buffer again(group, dtype, want.shape());
          group.all_to_all(in, again, rows, rows);
          EXPECT_TRUE(same_bits(again.read(), want)) << "equal rows";
          const auto equal = all_to_all_rows(group, in, rows);
          EXPECT_TRUE(same_bits(content_of(group, equal.data), want)) << "equal rows";
        }
      });
    }
  }
}

class ExchangedRows : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ExchangedRows, testing::ValuesIn(worlds_of_several()), CaseName());

TEST_P(ExchangedRows, OneWrongRankIsAnErrorOnAll) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const int size = group.size();
    const bool wrong = group.rank() == size - 1;
    const Buffer in(group, DType::f32, {size, 2});
    const Buffer other(group, DType::f32, {size, 3});
    std::vector<std::int64_t> negative(index(size), 1);
    negative[0] = -1;
    const std::vector<std::int64_t> most(index(size), 2);
    const std::vector<std::int64_t> longer(index(size) + 1, 1);
    for (const Rows& rows : {Rows(negative), Rows(most), Rows(longer)}) {
      expect_error(wrong ? Errc::invalid_argument : Errc::mismatch,
                   {wrong ? "all_to_all_rows" : "rank " + std::to_string(size - 1)},
                   [&] { (void)all_to_all_rows(group, in, wrong ? rows : Rows(1)); });
      expect_usable(group);
    }
    expect_error(Errc::mismatch, {"rows of f32 [2]", "rows of f32 [3]"},
                 [&] { (void)all_to_all_rows(group, wrong ? other : in, 1); });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
