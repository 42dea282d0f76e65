#include <tutti/gather.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/backend/forwarding_backend.hpp>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"
#include "support/dtypes.hpp"
#include "support/memories.hpp"

namespace tutti::test {
namespace {

class GatherMatrix : public testing::TestWithParam<MoveCell> {
 protected:
  const World& world() const { return GetParam().world; }
  DType dtype() const { return GetParam().dtype; }
};
INSTANTIATE_TEST_SUITE_P(Matrix, GatherMatrix, testing::ValuesIn(move_cells()), CaseName());

class Gathering : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int size() const { return GetParam().size; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Gathering, testing::ValuesIn(worlds()), CaseName());

class GatheringOfSeveral : public Gathering {};
INSTANTIATE_TEST_SUITE_P(Worlds, GatheringOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

const std::vector<Shape>& row_shapes() {
  static const std::vector<Shape> shapes{Shape{}, Shape{2, 5}};
  return shapes;
}

TEST_P(GatherMatrix, AllGatherRowsKeepsRankOrder) {
  for (const Shape& row_shape : row_shapes())
    for (const Layout& layout : layouts(world().size)) {
      const auto parts = make_parts(dtype(), layout, row_shape);
      const Array want = concat(parts);
      const RowLayout rows(layout);
      on_ranks(world(), [&](ProcessGroup& group) {
        SCOPED_TRACE("rows " + to_string(layout) + " of " + to_string(row_shape));
        const Array& mine = parts[index(group.rank())];
        const Buffer in(group, mine);
        const auto unknown = all_gather_rows(group, in);
        EXPECT_TRUE(same_bits(content_of(group, unknown.data), want));
        EXPECT_EQ(unknown.rows, rows);
        const auto known = all_gather_rows(group, in, rows);
        EXPECT_TRUE(same_bits(content_of(group, known.data), want));
        EXPECT_EQ(known.rows, rows);
        EXPECT_TRUE(same_bits(in.read(), mine)) << "the input was changed";
      });
    }
}

TEST_P(GatherMatrix, SeveralArraysShareOneExchange) {
  for (const Layout& layout : layouts(world().size)) {
    const auto parts = make_parts(dtype(), layout, {3});
    const auto scalars = make_parts(DType::f64, layout, {}, 1);
    const auto wide = make_parts(DType::u8, layout, {2, 2}, 2);
    on_ranks(world(), [&](ProcessGroup& group) {
      SCOPED_TRACE("rows " + to_string(layout));
      const auto me = index(group.rank());
      const Buffer a(group, parts[me]);
      const Buffer b(group, scalars[me]);
      const Buffer c(group, wide[me]);
      const std::vector<ConstTensorView> locals{a, b, c};
      const RowLayout rows(layout);
      const auto before = calls_of(group);
      const auto unknown = all_gather_rows(group, locals);
      EXPECT_EQ(calls_of(group), before + 1 + (inlines(group) || rows.total() == 0 ? 0U : 3U));
      const auto known = all_gather_rows(group, locals, rows);
      for (const auto* all : {&unknown, &known}) {
        ASSERT_EQ(all->data.size(), 3U);
        EXPECT_EQ(all->rows, rows);
        EXPECT_TRUE(same_bits(content_of(group, all->data[0]), concat(parts)));
        EXPECT_TRUE(same_bits(content_of(group, all->data[1]), concat(scalars)));
        EXPECT_TRUE(same_bits(content_of(group, all->data[2]), concat(wide)));
      }
    });
  }
}

/// Values that the dtype represents and that need each of its bits.
std::vector<double> fills_of(DType dtype) {
  if (dtype == DType::boolean) return {0, 1};
  if (dtype == DType::f8e4m3 || dtype == DType::f8e5m2) return {0, -1.5, std::nan("")};
  if (is_float(dtype) || is_complex(dtype)) return {0, -0.0, -1.5, HUGE_VAL, std::nan("")};
  return visit_dtype(dtype, []<typename T>() -> std::vector<double> {
    if constexpr (std::is_integral_v<T> && sizeof(T) < 8)
      return {0, 1, static_cast<double>(std::numeric_limits<T>::min()),
              static_cast<double>(std::numeric_limits<T>::max())};
    // The largest double below 2^63, or 2^64.
    else if constexpr (std::is_integral_v<T>)
      return {0, static_cast<double>(std::numeric_limits<T>::min()),
              std::ldexp(0x1.fffffffffffffp0, std::numeric_limits<T>::digits - 1)};
    return {};
  });
}

template <typename T>
struct RealPart {
  using type = T;
};
template <typename T>
struct RealPart<std::complex<T>> {
  using type = T;
};
template <typename T>
using Real = typename RealPart<T>::type;

/// [W, max n, ...] by a simple loop.
Array padded(const std::vector<Array>& parts, const Layout& layout, const Shape& row_shape,
             double fill) {
  const DType dtype = parts[0].dtype();
  const std::int64_t most = std::ranges::max(layout);
  Array one(dtype, rows_of(1, row_shape));
  visit_dtype(dtype, [&]<typename T>() {
    for (std::int64_t i = 0; i < one.numel(); ++i)
      one.put<T>(i, T(static_cast<Real<Wide<T>>>(fill)));
  });
  std::vector<Array> pieces;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    pieces.push_back(parts[r]);
    for (std::int64_t i = layout[r]; i < most; ++i) pieces.push_back(one);
  }
  std::vector<std::int64_t> dims{std::ssize(layout), most};
  dims.insert(dims.end(), row_shape.dims().begin(), row_shape.dims().end());
  return concat(pieces).reshaped(Shape(std::span<const std::int64_t>(dims)));
}

TEST_P(GatherMatrix, PaddedRowsAreFollowedByTheFill) {
  const auto fills = fills_of(dtype());
  std::size_t next = 0;
  for (const Shape& row_shape : row_shapes())
    for (const Layout& layout : layouts(world().size)) {
      const auto parts = make_parts(dtype(), layout, row_shape);
      const double fill = fills[next++ % fills.size()];
      const Array want = padded(parts, layout, row_shape, fill);
      const RowLayout rows(layout);
      on_ranks(world(), [&](ProcessGroup& group) {
        SCOPED_TRACE(
            fmt::format("rows {} of {}, fill {}", to_string(layout), to_string(row_shape), fill));
        const Buffer in(group, parts[index(group.rank())]);
        const auto unknown = all_gather_padded(group, in, fill);
        EXPECT_TRUE(same(content_of(group, unknown.data), want));
        EXPECT_EQ(unknown.rows, rows);
        const auto known = all_gather_padded(group, in, fill, rows);
        EXPECT_TRUE(same(content_of(group, known.data), want));
        EXPECT_EQ(known.rows, rows);
      });
    }
}

TEST_P(GatherMatrix, GatherRowsAndScatterRowsAreEachOthersReverse) {
  int next = 0;
  for (const Shape& row_shape : row_shapes())
    for (const Layout& layout : layouts(world().size)) {
      const auto parts = make_parts(dtype(), layout, row_shape);
      const Array want = concat(parts);
      const RowLayout rows(layout);
      const int root = next++ % world().size;
      on_ranks(world(), [&](ProcessGroup& group) {
        SCOPED_TRACE(
            fmt::format("rows {} of {}, root {}", to_string(layout), to_string(row_shape), root));
        const bool at_root = group.rank() == root;
        const Array& mine = parts[index(group.rank())];
        const Buffer in(group, mine);
        for (const RowLayout& given : {RowLayout(), rows}) {
          const auto all = gather_rows(group, in, root, given);
          EXPECT_EQ(all.rows, rows);
          EXPECT_TRUE(same_bits(content_of(group, all.data), at_root ? want : Array(dtype(), {0})));
        }
        const Buffer whole(group, want);
        const Tensor back =
            scatter_rows(group, at_root ? ConstTensorView(whole) : ConstTensorView(),
                         at_root ? rows : RowLayout(), root);
        EXPECT_TRUE(same_bits(content_of(group, back), mine));
      });
    }
}

class ReduceScatterRows : public testing::TestWithParam<ReduceCell> {};
INSTANTIATE_TEST_SUITE_P(Matrix, ReduceScatterRows, testing::ValuesIn(reduce_cells()), CaseName());

TEST_P(ReduceScatterRows, GivesEveryRankItsRowsOfTheReduced) {
  const World& world = GetParam().world;
  const auto scales = make_scales(world.size, Fill::exact);
  for (const Layout& layout : layouts(world.size)) {
    const Shape whole{total(layout), 3};
    const auto inputs =
        make_inputs(GetParam().dtype, whole, world.size, Fill::exact, GetParam().kind);
    const Array reduced = reduce_in_order(GetParam().kind, inputs, scales);
    const RowLayout rows(layout);
    on_ranks(world, [&](ProcessGroup& group) {
      SCOPED_TRACE("rows " + to_string(layout));
      const int rank = group.rank();
      const Buffer in(group, inputs[index(rank)]);
      const Tensor mine = reduce_scatter_rows(group, in, rows, op_of(GetParam().kind, scales, rank),
                                              {.integer_avg = true});
      EXPECT_TRUE(
          same(content_of(group, mine), reduced.rows(offset(layout, rank), layout[index(rank)])));
      EXPECT_TRUE(same(in.read(), inputs[index(rank)])) << "the input was changed";
    });
  }
}

// One array with several dimensions per row.

TEST_P(Gathering, AZeroDimensionalArrayIsOneRow) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer mine(group, array_of<std::int32_t>({group.rank() + 10}).reshaped({}));
    Array want(DType::i32, {group.size()});
    for (int r = 0; r < group.size(); ++r) want.put<std::int32_t>(r, r + 10);
    const RowLayout rows = RowLayout::equal(group.size(), 1);
    for (const RowLayout& given : {RowLayout(), rows}) {
      const auto all = all_gather_rows(group, mine, given);
      EXPECT_TRUE(same(content_of(group, all.data), want));
      EXPECT_EQ(all.rows, rows);
      const auto block = all_gather_padded(group, mine, 0, given);
      EXPECT_TRUE(same(content_of(group, block.data), want.reshaped({group.size(), 1})));
      const auto rooted = gather_rows(group, mine, 0, given);
      EXPECT_TRUE(
          same(content_of(group, rooted.data), group.rank() == 0 ? want : Array(DType::i32, {0})));
    }
    const Buffer out(group, DType::i32, {group.size()});
    all_gather_rows(group, mine, out, rows);
    EXPECT_TRUE(same(out.read(), want));
  });
}

TEST_P(Gathering, RowsOfNoBytesAreCounted) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer mine(group, DType::f64, {group.rank() + 1, 0});
    const auto all = all_gather_rows(group, mine);
    const std::int64_t n = group.size();
    EXPECT_EQ(all.data.shape(), (Shape{n * (n + 1) / 2, 0}));
    EXPECT_EQ(all.rows.max(), n);
  });
}

TEST_P(Gathering, BytesOfAnyLength) {
  const std::string odd("\0a\n\xff\0", 5);
  const std::vector<std::vector<std::size_t>> lengths{
      {0, 0, 0, 0}, {0, 5, 1, 0}, {3, 0, 70000, 1}, {65536, 65537, 65535, 0}, {1, 1, 1, 200000}};
  for (const auto& of : lengths) {
    std::vector<std::string> texts;
    for (int r = 0; r < size(); ++r) {
      std::string text;
      while (text.size() < of[index(r)]) text += odd + std::to_string(r);
      texts.push_back(text.substr(0, of[index(r)]));
    }
    on_ranks(world(), [&](ProcessGroup& group) {
      EXPECT_EQ(all_gather_bytes(group, texts[index(group.rank())]), texts);
    });
  }
}

TEST_P(Gathering, SmallGathersAreOneRoundAndLargeOnesTwo) {
  on_ranks(world(), [](ProcessGroup& group) {
    const auto calls = [&](const auto& gather) {
      const auto before = calls_of(group);
      gather();
      return calls_of(group) - before;
    };
    const auto one_round = 1U;
    const auto two_rounds = 2U;
    const auto for_small = inlines(group) ? one_round : two_rounds;
    const Buffer small(group, DType::u8, {max_inlined});
    // One larger rank suffices: it announces a second round.
    const Buffer large(group, DType::u8, {group.rank() == 0 ? max_inlined + 1 : 1});
    const auto rows = RowLayout::equal(group.size(), max_inlined);
    EXPECT_EQ(calls([&] { (void)all_gather_rows(group, small); }), for_small);
    EXPECT_EQ(calls([&] { (void)all_gather_rows(group, large); }), two_rounds);
    EXPECT_EQ(calls([&] { (void)all_gather_rows(group, small, rows); }), 1U);
    EXPECT_EQ(calls([&] { (void)all_gather_padded(group, small, 0); }), for_small);
    EXPECT_EQ(calls([&] { (void)gather_all_tensors(group, large); }), two_rounds);
    EXPECT_EQ(calls([&] { (void)exchange_rows(group, 3); }), one_round);
  });
}

// A backend without messages shorter than posted: sizes first, then rows.
class WithoutBounded final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept override {
    return operation != Operation::all_gather_bounded &&
           ForwardingBackend::supports(operation, dtype, reduce);
  }
};

TEST_P(GatheringOfSeveral, BackendsWithoutBoundedMessagesTakeTwoRounds) {
  Fresh fresh;
  fresh.adjust = [](GroupOptions& options) {
    options.decorate = [](std::unique_ptr<Backend> inner) {
      return std::make_unique<WithoutBounded>(std::move(inner));
    };
  };
  for (const std::int64_t row_bytes : {3, 40000}) {
    Layout layout(index(size()), 2);
    layout.front() = 0;
    const auto parts = make_parts(DType::u8, layout, {row_bytes});
    on_fresh_ranks(
        world(),
        [&](ProcessGroup& group) {
          const auto before = calls_of(group);
          const Buffer mine(group, parts[index(group.rank())]);
          const auto all = all_gather_rows(group, mine);
          EXPECT_TRUE(same_bits(content_of(group, all.data), concat(parts)));
          EXPECT_EQ(calls_of(group), before + 2);
          const auto each = gather_all_tensors(group, mine);
          for (int r = 0; r < group.size(); ++r)
            EXPECT_TRUE(same_bits(content_of(group, each[index(r)]), parts[index(r)]));
          const auto texts = all_gather_bytes(group, std::to_string(group.rank()));
          EXPECT_EQ(texts.back(), std::to_string(group.size() - 1));
          const Buffer odd(group, group.rank() == 0 ? DType::f32 : DType::f64, {1});
          expect_error(Errc::mismatch, {"f32", "f64"}, [&] { (void)all_gather_rows(group, odd); });
          expect_usable(group);
        },
        fresh);
  }
}

// Memory.

TEST_P(Gathering, ResultsAreInTheCallersMemory) {
  // Small and large: inlined, and in a second round.
  for (const std::int64_t row_bytes : {8, 50000}) {
    Layout layout(index(size()), 2);
    layout.back() = 3;
    const RowLayout rows(layout);
    on_ranks(world(), [&](ProcessGroup& group) {
      RecordingMemory memory(group.memory());
      const auto expect_there = [&](const Tensor& tensor) {
        ASSERT_EQ(memory.live().size(), 1U);
        EXPECT_EQ(memory.live()[0].data, tensor.data());
        EXPECT_EQ(memory.live()[0].bytes, tensor.bytes());
      };
      const Buffer mine(group, DType::u8, {rows[group.rank()], row_bytes});
      const Buffer whole(group, DType::u8, {rows.total(), row_bytes});
      for (const RowLayout& given : {RowLayout(), rows}) {
        const CallOptions options{.memory = &memory};
        expect_there(all_gather_rows(group, mine, given, options).data);
        expect_there(all_gather_padded(group, mine, 0, given, options).data);
        expect_there(gather_rows(group, mine, 0, given, options).data);
      }
      expect_there(scatter_rows(group, whole, group.rank() == 0 ? rows : RowLayout(), 0,
                                {.memory = &memory}));
      expect_there(reduce_scatter_rows(group, whole, rows, ReduceOp::max, {.memory = &memory}));
      {
        const auto all = gather_all_tensors(group, mine, {.memory = &memory});
        EXPECT_EQ(memory.live().size(), all.size());
        for (const auto& block : memory.live())
          EXPECT_TRUE(
              std::ranges::any_of(all, [&](const Tensor& t) { return t.data() == block.data; }));
      }
      EXPECT_TRUE(memory.live().empty()) << "all of it was given back";
    });
  }
}

// exchange_rows.

TEST_P(Gathering, ExchangedRowsAreTheSameEverywhere) {
  on_ranks(world(), [](ProcessGroup& group) {
    constexpr std::int64_t large = std::int64_t{1} << 40;
    for (const bool some : {false, true}) {
      Layout want;
      for (int r = 0; r < group.size(); ++r) want.push_back(some ? r * large : 0);
      const RowLayout rows = exchange_rows(group, want[index(group.rank())]);
      EXPECT_EQ(rows, RowLayout(want));
      EXPECT_EQ(rows.total(), total(want));
    }
  });
}

TEST_P(Gathering, ANegativeNumberOfRowsIsAnErrorOnAll) {
  for (int odd = 0; odd < size(); ++odd)
    on_ranks(world(), [&](ProcessGroup& group) {
      expect_error(Errc::invalid_argument, {"rank " + std::to_string(odd), "-5"},
                   [&] { (void)exchange_rows(group, group.rank() == odd ? -5 : 3); });
      expect_usable(group);
    });
}

TEST_P(GatheringOfSeveral, RowsThatDoNotFitTogetherAreAnErrorOnAll) {
  on_ranks(world(), [](ProcessGroup& group) {
    constexpr std::int64_t half = std::int64_t{1} << 62;
    expect_error(Errc::count_overflow, {std::to_string(half), "2^63"},
                 [&] { (void)exchange_rows(group, half); });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
