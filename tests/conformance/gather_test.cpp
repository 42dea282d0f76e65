#include <tutti/gather.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"
#include "support/dtypes.hpp"
#include "support/forward_backend.hpp"
#include "support/recording_memory.hpp"

namespace tutti::test {
namespace {

constexpr std::int64_t along = 65536;  ///< So many bytes travel with the sizes.

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

class GatheringComparing : public Gathering {};
INSTANTIATE_TEST_SUITE_P(Worlds, GatheringComparing, testing::ValuesIn(worlds_that_compare()),
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
        EXPECT_EQ(unknown.layout, rows);
        const auto known = all_gather_rows(group, in, {.layout = &rows});
        EXPECT_TRUE(same_bits(content_of(group, known.data), want));
        EXPECT_EQ(known.layout, rows);
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
      EXPECT_EQ(calls_of(group), before + (group.size() == 1 ? 0U : 1U));
      const auto known = all_gather_rows(group, locals, {.layout = &rows});
      for (const auto* all : {&unknown, &known}) {
        ASSERT_EQ(all->data.size(), 3U);
        EXPECT_EQ(all->layout, rows);
        EXPECT_TRUE(same_bits(content_of(group, all->data[0]), concat(parts)));
        EXPECT_TRUE(same_bits(content_of(group, all->data[1]), concat(scalars)));
        EXPECT_TRUE(same_bits(content_of(group, all->data[2]), concat(wide)));
      }
    });
  }
}

/// Values that a dtype has, and that every bit of counts.
std::vector<double> fills_of(DType dtype) {
  if (dtype == DType::boolean) return {0, 1};
  if (dtype == DType::f8e4m3 || dtype == DType::f8e5m2) return {0, -1.5, std::nan("")};
  if (is_float(dtype)) return {0, -0.0, -1.5, HUGE_VAL, std::nan("")};
  return with_dtype(dtype, []<typename T>() -> std::vector<double> {
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

/// [W, max n, ...] the slow way.
Array padded(const std::vector<Array>& parts, const Layout& layout, const Shape& row_shape,
             double fill) {
  const DType dtype = parts[0].dtype();
  const std::int64_t most = std::ranges::max(layout);
  Array one(dtype, rows_of(1, row_shape));
  with_dtype(dtype, [&]<typename T>() {
    for (std::int64_t i = 0; i < one.numel(); ++i) one.put<T>(i, T(static_cast<Wide<T>>(fill)));
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
        EXPECT_EQ(unknown.layout, rows);
        const auto known = all_gather_padded(group, in, fill, {.layout = &rows});
        EXPECT_TRUE(same(content_of(group, known.data), want));
        EXPECT_EQ(known.layout, rows);
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
        for (const RowLayout* given : {static_cast<const RowLayout*>(nullptr), &rows}) {
          const auto all = gather_rows(group, in, root, {.layout = given});
          EXPECT_EQ(all.layout, rows);
          EXPECT_TRUE(same_bits(content_of(group, all.data), at_root ? want : Array(dtype(), {0})));
        }
        const Buffer whole(group, want);
        const Tensor back =
            scatter_rows(group, at_root ? ConstTensorView(whole) : ConstTensorView(),
                         at_root ? &rows : nullptr, root);
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
                                              {.call = {.integer_avg = IntegerAvg::truncate}});
      EXPECT_TRUE(
          same(content_of(group, mine), reduced.rows(offset(layout, rank), layout[index(rank)])));
      EXPECT_TRUE(same(in.read(), inputs[index(rank)])) << "the input was changed";
    });
  }
}

// Ways of travelling.

constexpr std::array<GatherAlgo, gather_algo_count> algos{
    GatherAlgo::automatic, GatherAlgo::native, GatherAlgo::direct,
    GatherAlgo::ring,      GatherAlgo::padded, GatherAlgo::broadcasts};

struct Rowed {
  Layout layout;
  Shape row_shape;
};

/// What makes algorithms stumble: nothing at all, one rank only, rows without bytes, one byte more
/// or less than what travels along, rows larger than a segment of the ring.
std::vector<Rowed> rowed_layouts(int size) {
  const auto ranks = index(size);
  std::vector<Rowed> all{{Layout(ranks, 0), {}}, {Layout(ranks, 0), {3}}};
  for (const Layout& layout : layouts(size)) {
    all.push_back({layout, {}});
    all.push_back({layout, {257}});
    all.push_back({layout, {0}});
    all.push_back({layout, {2, 0, 3}});
  }
  for (const std::int64_t bytes : {along - 1, along, along + 1}) {
    Layout first(ranks, 0);
    first.front() = bytes;
    all.push_back({first, {}});
    Layout last(ranks, 5);
    last.back() = bytes;
    all.push_back({last, {}});
    all.push_back({Layout(ranks, 1), {bytes}});
  }
  Layout heavy(ranks, 1);
  heavy.back() = 3;
  all.push_back({heavy, {(256 << 10) + 5}});
  return all;
}

TEST_P(Gathering, EveryAlgorithmGivesTheSameBytes) {
  for (const Rowed& rowed : rowed_layouts(size())) {
    const auto parts = make_parts(DType::u8, rowed.layout, rowed.row_shape);
    const Array want = concat(parts);
    const RowLayout rows(rowed.layout);
    on_ranks(world(), [&](ProcessGroup& group) {
      const Array& mine = parts[index(group.rank())];
      const Buffer in(group, mine);
      for (const GatherAlgo algo : algos) {
        SCOPED_TRACE(fmt::format("{} of rows {} of {}", name_of(algo), to_string(rowed.layout),
                                 to_string(rowed.row_shape)));
        const Buffer out(group, DType::u8, want.shape());
        all_gather_rows(group, in, out, rows, {.algo = algo});
        EXPECT_TRUE(same_bits(out.read(), want)) << "with a layout";
        const auto unknown = all_gather_rows(group, in, {.algo = algo});
        EXPECT_TRUE(same_bits(content_of(group, unknown.data), want)) << "without one";
        EXPECT_EQ(unknown.layout, rows);
      }
      EXPECT_TRUE(same_bits(in.read(), mine)) << "the input was changed";
    });
  }
}

TEST_P(Gathering, EveryAlgorithmWorksInPlace) {
  for (const Layout& layout : layouts(size())) {
    const auto parts = make_parts(DType::i32, layout, {2});
    const Array want = concat(parts);
    const RowLayout rows(layout);
    on_ranks(world(), [&](ProcessGroup& group) {
      for (const GatherAlgo algo : algos) {
        SCOPED_TRACE(fmt::format("{} of rows {}", name_of(algo), to_string(layout)));
        const Buffer out(group, DType::i32, want.shape());
        const Array& mine = parts[index(group.rank())];
        const TensorView own = out.rows(rows.offset(group.rank()), rows[group.rank()]);
        if (own.bytes() != 0) group.memory().copy(own.data, mine.bytes().data(), own.bytes(), {});
        all_gather_rows(group, own, out, rows, {.algo = algo});
        EXPECT_TRUE(same_bits(out.read(), want));
      }
    });
  }
}

// Several on their way at once would mix if their messages could.
TEST_P(Gathering, AlgorithmsOneBehindTheOtherDoNotMix) {
  Layout layout(index(size()), 4);
  layout.front() = 1;
  const RowLayout rows(layout);
  const auto parts = make_parts(DType::u64, layout, {3});
  on_ranks(world(), [&](ProcessGroup& group) {
    for (int round = 0; round < 20; ++round) {
      const auto algo = algos[index(round) % algos.size()];
      std::vector<Array> changed = parts;
      for (Array& part : changed) part.put<std::uint64_t>(0, mix(index(round)));
      const Buffer in(group, changed[index(group.rank())]);
      const auto all = all_gather_rows(group, in, {.layout = &rows, .algo = algo});
      EXPECT_TRUE(same_bits(content_of(group, all.data), concat(changed))) << name_of(algo);
    }
  });
}

TEST_P(Gathering, AnUnknownAlgorithmIsRefused) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer in(group, DType::f32, {2});
    const RowLayout rows = RowLayout::equal(group.size(), 2);
    const GatherOptions options{.layout = &rows, .algo = static_cast<GatherAlgo>(77)};
    if (group.size() > 1)
      expect_error(Errc::invalid_argument, {"77"},
                   [&] { (void)all_gather_rows(group, in, options); });
    expect_usable(group);
  });
}

TEST_P(Gathering, TheTableChoosesAnAlgorithmThatExists) {
  on_ranks(world(), [](ProcessGroup& group) {
    for (const Layout& layout : layouts(group.size()))
      for (const std::size_t row_bytes : {std::size_t{1}, std::size_t{1} << 20}) {
        const GatherAlgo chosen = choose_gather_algo(group, RowLayout(layout), row_bytes);
        EXPECT_NE(chosen, GatherAlgo::automatic);
        EXPECT_NE(describe_gather_table().find(name_of(chosen)), std::string::npos);
      }
  });
}

// Rows that are not arrays of several.

TEST_P(Gathering, AZeroDimensionalArrayIsOneRow) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer mine(group, array_of<std::int32_t>({group.rank() + 10}).reshaped({}));
    Array want(DType::i32, {group.size()});
    for (int r = 0; r < group.size(); ++r) want.put<std::int32_t>(r, r + 10);
    const RowLayout rows = RowLayout::equal(group.size(), 1);
    for (const RowLayout* given : {static_cast<const RowLayout*>(nullptr), &rows}) {
      const auto all = all_gather_rows(group, mine, {.layout = given});
      EXPECT_TRUE(same(content_of(group, all.data), want));
      EXPECT_EQ(all.layout, rows);
      const auto block = all_gather_padded(group, mine, 0, {.layout = given});
      EXPECT_TRUE(same(content_of(group, block.data), want.reshaped({group.size(), 1})));
      const auto rooted = gather_rows(group, mine, 0, {.layout = given});
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
    EXPECT_EQ(all.layout.max(), n);
  });
}

// Nothing but the number of rows is too much here: no rank can have the sum.
TEST_P(GatheringOfSeveral, MoreRowsThanFitAreRefusedEverywhere) {
  on_ranks(world(), [](ProcessGroup& group) {
    const ConstTensorView mine(nullptr, DType::u8, {std::int64_t{1} << 62, 0},
                               group.memory().device());
    expect_error(Errc::count_overflow, {"2^63", std::to_string(std::int64_t{1} << 62)},
                 [&] { (void)all_gather_rows(group, mine); });
    expect_usable(group);
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
    const bool alone = group.size() == 1;
    const Buffer small(group, DType::u8, {along});
    // One rank with more is enough: it announces that more follows.
    const Buffer large(group, DType::u8, {group.rank() == 0 ? along + 1 : 1});
    const auto rows = RowLayout::equal(group.size(), along);
    EXPECT_EQ(calls([&] { (void)all_gather_rows(group, small); }), alone ? 0U : 1U);
    EXPECT_EQ(calls([&] { (void)all_gather_rows(group, large); }), alone ? 1U : 2U);
    EXPECT_EQ(calls([&] { (void)all_gather_rows(group, small, {.layout = &rows}); }), 1U);
    EXPECT_EQ(calls([&] { (void)all_gather_padded(group, small, 0); }), alone ? 0U : 1U);
    EXPECT_EQ(calls([&] { (void)gather_all_tensors(group, large); }), alone ? 1U : 2U);
    EXPECT_EQ(calls([&] { (void)exchange_rows(group, 3); }), alone ? 0U : 1U);
  });
}

// A backend that takes no shorter message than was posted: sizes first, then rows.
class WithoutBounded final : public ForwardBackend {
 public:
  using ForwardBackend::ForwardBackend;
  bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept override {
    return operation != Operation::all_gather_bounded &&
           ForwardBackend::supports(operation, dtype, reduce);
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
  // Small and large: both ways of travelling.
  for (const std::int64_t row_bytes : {8, 50000}) {
    Layout layout(index(size()), 2);
    layout.back() = 3;
    const RowLayout rows(layout);
    on_ranks(world(), [&](ProcessGroup& group) {
      RecordingMemory memory;
      const auto expect_there = [&](const Tensor& tensor) {
        const RecordingMemory::Place place(const_cast<void*>(tensor.data()), tensor.bytes());
        EXPECT_EQ(memory.live(), std::vector{place});
      };
      const Buffer mine(group, DType::u8, {rows[group.rank()], row_bytes});
      const Buffer whole(group, DType::u8, {rows.total(), row_bytes});
      for (const RowLayout* given : {static_cast<const RowLayout*>(nullptr), &rows}) {
        const GatherOptions options{.layout = given, .memory = &memory};
        expect_there(all_gather_rows(group, mine, options).data);
        expect_there(all_gather_padded(group, mine, 0, options).data);
        expect_there(gather_rows(group, mine, 0, options).data);
      }
      expect_there(
          scatter_rows(group, whole, group.rank() == 0 ? &rows : nullptr, 0, {.memory = &memory}));
      expect_there(reduce_scatter_rows(group, whole, rows, ReduceOp::max, {.memory = &memory}));
      {
        const auto all = gather_all_tensors(group, mine, {.memory = &memory});
        EXPECT_EQ(memory.live().size(), all.size());
        for (const auto& [data, bytes] : memory.live())
          EXPECT_TRUE(
              std::ranges::any_of(all, [d = data](const Tensor& t) { return t.data() == d; }));
      }
      EXPECT_TRUE(memory.live().empty()) << "all of it was given back";
    });
  }
}

/// Writes down what this rank gives to the transport.
class Listener final : public ForwardBackend {
 public:
  Listener(std::unique_ptr<Backend> inner, std::vector<std::string>& sent)
      : ForwardBackend(std::move(inner)), sent_(sent) {}

  Work launch(std::span<const Op> ops, const Call& call) override {
    for (const Op& op : ops)
      if (op.in.bytes() != 0 && op.kind != Operation::recv)
        sent_.emplace_back(static_cast<const char*>(op.in.data), op.in.bytes());
    return ForwardBackend::launch(ops, call);
  }

 private:
  std::vector<std::string>& sent_;
};

TEST_P(GatheringOfSeveral, NothingTravelsButTheRows) {
  constexpr std::int64_t row_bytes = 5;
  const std::string neighbour(64, '\xA7');
  PerRank<std::vector<std::string>> sent(size());
  Fresh fresh;
  fresh.adjust = [&](GroupOptions& options) {
    options.decorate = [&sent, rank = options.rank](std::unique_ptr<Backend> inner) {
      return std::make_unique<Listener>(std::move(inner), sent[rank]);
    };
  };
  on_fresh_ranks(
      world(),
      [&](ProcessGroup& group) {
        // Rank 0 has the most, the last one a single row.
        Layout layout;
        for (int r = 0; r < group.size(); ++r) layout.push_back(group.size() - r);
        const RowLayout rows(layout);
        const std::int64_t mine = rows[group.rank()];
        const std::string text(static_cast<std::size_t>(mine * row_bytes),
                               static_cast<char>('a' + group.rank()));
        std::string block = neighbour + text + neighbour;
        const ConstTensorView local(block.data() + neighbour.size(), DType::u8, {mine, row_bytes});
        auto& heard = sent[group.rank()];
        const auto expect_clean = [&](const std::string& what) {
          SCOPED_TRACE(what);
          EXPECT_TRUE(std::ranges::any_of(heard, [&](const std::string& s) {
            return s.find(text) != std::string::npos;
          })) << "the rows were not seen";
          for (const std::string& s : heard)
            EXPECT_EQ(s.find(neighbour.substr(0, 4)), std::string::npos);
          heard.clear();
        };
        heard.clear();
        for (const GatherAlgo algo : algos) {
          const auto all = all_gather_rows(group, local, {.layout = &rows, .algo = algo});
          if (algo == GatherAlgo::padded) {
            ASSERT_EQ(heard.size(), 1U);
            std::string padding = text;
            padding.resize(static_cast<std::size_t>(rows.max() * row_bytes), '\0');
            EXPECT_EQ(heard[0], padding);
          }
          expect_clean(std::string(name_of(algo)));
        }
        (void)all_gather_rows(group, local);
        expect_clean("all_gather_rows");
        (void)gather_all_tensors(group, local);
        expect_clean("gather_all_tensors");
        const auto padded_rows = all_gather_padded(group, local, 0);
        expect_clean("all_gather_padded");
        const Array got = content_of(group, padded_rows.data);
        EXPECT_EQ(std::ranges::count(got.bytes(), std::byte{0xA7}), 0);
      },
      fresh);
}

// Refusals.

/// A gather of which one rank makes another call.
struct Disagreement {
  std::string name;
  std::vector<std::string> texts;
  std::function<void(ProcessGroup& group, bool other)> call;
};

/// Memory for arrays whose content does not matter.
ConstTensorView array(ProcessGroup& group, DType dtype, const Shape& shape) {
  static const std::vector<std::byte> zeros(std::size_t{1} << 20);  // Enough for all of them.
  return {zeros.data(), dtype, shape, group.memory().device()};
}

void gather_array(ProcessGroup& group, DType dtype, const Shape& shape) {
  (void)all_gather_rows(group, array(group, dtype, shape));
}

std::vector<Disagreement> disagreements() {
  using G = ProcessGroup;
  return {
      {"dtype",
       {"f32", "i32"},
       [](G& g, bool other) {
         gather_array(g, other ? DType::i32 : DType::f32, {2, 3});
       }},
      {"dimensions",
       {"[*, 3]", "[*, 3, 1]"},
       [](G& g, bool other) {
         gather_array(g, DType::f32, other ? Shape{2, 3, 1} : Shape{2, 3});
       }},
      {"rows of numbers and of arrays",
       {"[*]", "[*, 3]"},
       [](G& g, bool other) {
         gather_array(g, DType::f32, other ? Shape{6} : Shape{2, 3});
       }},
      {"row shape",
       {"[*, 3]", "[*, 4]"},
       [](G& g, bool other) {
         gather_array(g, DType::f32, {2, other ? 4 : 3});
       }},
      {"row shape of an empty array",
       {"[*, 3]", "[*, 4]"},
       [](G& g, bool other) {
         gather_array(g, DType::f32, {other ? 0 : 2, other ? 4 : 3});
       }},
      {"dtype of large arrays",
       {"f64", "u8"},
       [](G& g, bool other) { gather_array(g, other ? DType::f64 : DType::u8, {100000}); }},
      {"number of arrays",
       {"f32 [*], f32 [*]"},
       [](G& g, bool other) {
         const std::vector<ConstTensorView> arrays(other ? 2 : 1, array(g, DType::f32, {2}));
         (void)all_gather_rows(g, arrays);
       }},
      {"order of arrays",
       {"f32 [*], u8 [*]", "u8 [*], f32 [*]"},
       [](G& g, bool other) {
         std::vector<ConstTensorView> arrays{array(g, DType::f32, {2}), array(g, DType::u8, {2})};
         if (other) std::swap(arrays[0], arrays[1]);
         (void)all_gather_rows(g, arrays);
       }},
      {"all_gather_rows and gather_all_tensors",
       {"all_gather_rows of", "gather_all_tensors of"},
       [](G& g, bool other) {
         const auto mine = array(g, DType::f32, {2});
         if (other)
           (void)gather_all_tensors(g, mine);
         else
           (void)all_gather_rows(g, mine);
       }},
      {"all_gather_rows and all_gather_padded",
       {"all_gather_rows of", "all_gather_padded of"},
       [](G& g, bool other) {
         const auto mine = array(g, DType::f32, {2});
         if (other)
           (void)all_gather_padded(g, mine, 0);
         else
           (void)all_gather_rows(g, mine);
       }},
      {"all_gather_rows and gather_rows",
       {"all_gather_rows of", "gather_rows to root 0"},
       [](G& g, bool other) {
         const auto mine = array(g, DType::f32, {2});
         if (other)
           (void)gather_rows(g, mine, 0);
         else
           (void)all_gather_rows(g, mine);
       }},
      {"all_gather_bytes and all_gather_rows",
       {"all_gather_bytes of u8 [*]", "all_gather_rows of u8 [*]"},
       [](G& g, bool other) {
         if (other)
           (void)all_gather_rows(g, array(g, DType::u8, {2}));
         else
           (void)all_gather_bytes(g, "ab");
       }},
      {"root",
       {"gather_rows to root 0", "gather_rows to root 1"},
       [](G& g, bool other) { (void)gather_rows(g, array(g, DType::f32, {2}), other ? 1 : 0); }},
  };
}

// In every mode of every backend: the messages say it themselves.
TEST_P(GatheringOfSeveral, WhatTheRanksDisagreeAboutIsNamedOnEveryRank) {
  for (const Disagreement& d : disagreements())
    for (int odd = 0; odd < size(); ++odd) {
      PerRank<std::string> texts(size());
      on_ranks(world(), [&](ProcessGroup& group) {
        SCOPED_TRACE(d.name + ", rank " + std::to_string(odd));
        const Error error =
            expect_error(Errc::mismatch, d.texts, [&] { d.call(group, group.rank() == odd); });
        EXPECT_EQ(error.where().group, group.name());
        texts[group.rank()] = error.message();
        expect_usable(group);
      });
      for (const std::string& text : texts.all()) EXPECT_EQ(text, texts[0]) << d.name;
    }
}

/// A gather that one rank cannot make.
struct BadGather {
  std::string name;
  std::vector<std::string> texts;
  std::function<void(ProcessGroup& group, bool bad)> call;
};

template <typename Gather>
BadGather null_array(const std::string& name, const Gather& gather) {
  return {"null array of " + name, {"null", "f32 [2]"}, [gather](ProcessGroup& group, bool bad) {
            auto mine = array(group, DType::f32, {2});
            if (bad) mine.data = nullptr;
            gather(group, mine);
          }};
}

std::vector<BadGather> bad_gathers() {
  using G = ProcessGroup;
  using View = ConstTensorView;
  return {
      null_array("all_gather_rows", [](G& g, const View& v) { (void)all_gather_rows(g, v); }),
      null_array("all_gather_padded",
                 [](G& g, const View& v) { (void)all_gather_padded(g, v, 1); }),
      null_array("gather_rows", [](G& g, const View& v) { (void)gather_rows(g, v, 0); }),
      null_array("gather_all_tensors", [](G& g, const View& v) { (void)gather_all_tensors(g, v); }),
      {"unknown dtype",
       {"dtype", "77"},
       [](G& g, bool bad) { gather_array(g, bad ? static_cast<DType>(77) : DType::f32, {2}); }},
      {"unknown dtype, padded",
       {"dtype", "77"},
       [](G& g, bool bad) {
         const auto dtype = bad ? static_cast<DType>(77) : DType::f32;
         (void)all_gather_padded(g, array(g, dtype, {2}), 0);
       }},
      {"another device",
       {"99"},
       [](G& g, bool bad) {
         auto mine = array(g, DType::f32, {2});
         if (bad) mine.device = {DeviceType::extension, 99};
         (void)all_gather_rows(g, mine);
       }},
      {"arrays of different lengths",
       {"share a layout", "2 and 3"},
       [](G& g, bool bad) {
         const std::vector<View> arrays{array(g, DType::f32, {2}),
                                        array(g, DType::f32, {bad ? 3 : 2})};
         (void)all_gather_rows(g, arrays);
       }},
      {"no arrays",
       {"no arrays"},
       [](G& g, bool bad) {
         const std::vector<View> arrays(bad ? 0 : 1, array(g, DType::f32, {2}));
         (void)all_gather_rows(g, arrays);
       }},
      {"too many arrays",
       {"33", "32"},
       [](G& g, bool bad) {
         const std::vector<View> arrays(bad ? 33 : 32, array(g, DType::f32, {2}));
         (void)all_gather_rows(g, arrays);
       }},
      {"fill that is no value",
       {"0.5", "i32"},
       [](G& g, bool bad) {
         (void)all_gather_padded(g, array(g, DType::i32, {2}), bad ? 0.5 : 1);
       }},
      {"padded array of eight dimensions",
       {"8 dimensions", "9"},
       [](G& g, bool bad) {
         const Shape eight{2, 1, 1, 1, 1, 1, 1, 1};
         (void)all_gather_padded(g, array(g, DType::i32, bad ? eight : Shape{2}), 0);
       }},
      {"root that does not exist",
       {"root is"},
       [](G& g, bool bad) { (void)gather_rows(g, array(g, DType::f32, {2}), bad ? g.size() : 0); }},
      {"negative root",
       {"root is -1"},
       [](G& g, bool bad) { (void)gather_rows(g, array(g, DType::f32, {2}), bad ? -1 : 0); }},
  };
}

TEST_P(Gathering, WhatOneRankCannotDoIsAnErrorOnAll) {
  for (const BadGather& bad : bad_gathers())
    for (int odd = 0; odd < size(); ++odd)
      on_ranks(world(), [&](ProcessGroup& group) {
        const std::string who = "rank " + std::to_string(odd);
        SCOPED_TRACE(bad.name + ", " + who);
        const bool mine = group.rank() == odd;
        std::vector<std::string> texts = bad.texts;
        if (!mine) texts.insert(texts.end(), {who, "refused"});
        const Error error = expect_error(mine ? Errc::invalid_argument : Errc::mismatch, texts,
                                         [&] { bad.call(group, mine); });
        EXPECT_EQ(error.where().rank, odd);
        EXPECT_EQ(error.where().group, group.name());
        expect_usable(group);
      });
}

TEST_P(Gathering, FillsHaveToBeValuesOfTheDType) {
  struct Fill {
    DType dtype;
    double value;
  };
  const double nan = std::nan("");
  const std::vector<Fill> bad{{DType::u8, 256},       {DType::u8, -1},       {DType::i8, 128},
                              {DType::i8, -129},      {DType::i32, 0x1p31},  {DType::u32, 0x1p32},
                              {DType::i64, 0x1p63},   {DType::u64, 0x1p64},  {DType::u64, -1},
                              {DType::boolean, 2},    {DType::boolean, 0.5}, {DType::i64, nan},
                              {DType::u32, HUGE_VAL}, {DType::i8, -0.25}};
  on_ranks(world(), [&](ProcessGroup& group) {
    const RowLayout rows = RowLayout::equal(group.size(), 2);
    for (const auto& [dtype, value] : bad)
      for (const RowLayout* given : {static_cast<const RowLayout*>(nullptr), &rows})
        expect_error(Errc::invalid_argument, {"fill", std::string(name_of(dtype))},
                     [&, d = dtype, v = value] {
                       (void)all_gather_padded(group, array(group, d, {2}), v, {.layout = given});
                     });
    expect_usable(group);
  });
}

struct BadRoot {
  std::string name;
  std::vector<std::string> texts;
  std::function<void(ConstTensorView& whole, RowLayout& rows, const RowLayout*& layout)> spoil;
};

// Only root knows what it sends; it tells the others when that is nothing.
TEST_P(Gathering, WhatRootCannotScatterIsAnErrorOnAll) {
  const std::vector<BadRoot> bad{
      {"no layout", {"layout"}, [](auto&, auto&, auto& layout) { layout = nullptr; }},
      {"null", {"null"}, [](auto& whole, auto&, auto&) { whole.data = nullptr; }},
      {"unknown dtype",
       {"77"},
       [](auto& whole, auto&, auto&) { whole.dtype = static_cast<DType>(77); }},
      {"too many ranks",
       {"ranks"},
       [](auto&, RowLayout& rows, auto&) { rows = RowLayout::equal(rows.ranks() + 1, 2); }},
      {"another total",
       {"rows; the layout has"},
       [](auto&, RowLayout& rows, auto&) { rows = RowLayout::equal(rows.ranks(), 3); }},
  };
  for (const BadRoot& b : bad)
    for (int root = 0; root < size(); ++root)
      on_ranks(world(), [&](ProcessGroup& group) {
        SCOPED_TRACE(b.name);
        const bool at_root = group.rank() == root;
        RowLayout rows = RowLayout::equal(group.size(), 2);
        ConstTensorView whole = array(group, DType::f32, {2 * group.size(), 3});
        const RowLayout* layout = &rows;
        if (at_root)
          b.spoil(whole, rows, layout);
        else
          layout = nullptr;
        const std::vector<std::string> told{"rank " + std::to_string(root), "refused scatter_rows"};
        const Error error = expect_error(at_root ? Errc::invalid_argument : Errc::mismatch,
                                         at_root ? b.texts : told,
                                         [&] { (void)scatter_rows(group, whole, layout, root); });
        EXPECT_EQ(error.where().rank, root);
        expect_usable(group);
      });
}

/// Layouts that say something else than the arrays of a group of this size, 2 rows on each rank.
std::vector<RowLayout> wrong_layouts(int size) {
  return {RowLayout::equal(size, 3),     RowLayout::equal(size, 1),     RowLayout::equal(size, 0),
          RowLayout::equal(size + 1, 2), RowLayout::equal(size - 1, 2), RowLayout()};
}

TEST_P(Gathering, ALayoutThatContradictsTheArrayIsRefusedByEveryAlgorithm) {
  on_ranks(world(), [](ProcessGroup& group) {
    const auto mine = array(group, DType::f32, {2, 3});
    for (const RowLayout& wrong : wrong_layouts(group.size()))
      for (const GatherAlgo algo : algos) {
        SCOPED_TRACE(fmt::format("{} by {}", to_string(wrong), name_of(algo)));
        const GatherOptions options{.layout = &wrong, .algo = algo};
        const auto refused = [&](const std::function<void()>& call) {
          expect_error(Errc::invalid_argument, {"rows"}, call);
        };
        refused([&] { (void)all_gather_rows(group, mine, options); });
        refused([&] { (void)all_gather_padded(group, mine, 0, options); });
        const Buffer out(group, DType::f32, {wrong.total(), 3});
        refused([&] { all_gather_rows(group, mine, out, wrong, {.algo = algo}); });
        if (algo != GatherAlgo::automatic) continue;
        refused([&] { (void)gather_rows(group, mine, 0, options); });
        const auto whole = array(group, DType::f32, {2 * group.size(), 3});
        refused([&] { (void)reduce_scatter_rows(group, whole, wrong); });
      }
    expect_usable(group);
  });
}

TEST_P(Gathering, AnOutputThatContradictsTheLayoutIsRefusedByEveryAlgorithm) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int n = group.size();
    const RowLayout rows = RowLayout::equal(n, 2);
    const auto mine = array(group, DType::f32, {2, 3});
    for (const GatherAlgo algo : algos) {
      SCOPED_TRACE(name_of(algo));
      const auto refused = [&](DType dtype, const Shape& shape, const std::string& text) {
        const Buffer out(group, dtype, shape);
        expect_error(Errc::invalid_argument, {text},
                     [&] { all_gather_rows(group, mine, out, rows, {.algo = algo}); });
      };
      refused(DType::f32, {2 * n + 1, 3}, "rows");
      refused(DType::f32, {2 * n, 4}, "[2, 3]");
      refused(DType::i32, {2 * n, 3}, "i32");
      const TensorView null(nullptr, DType::f32, {2 * n, 3}, group.memory().device());
      expect_error(Errc::invalid_argument, {"null"},
                   [&] { all_gather_rows(group, mine, null, rows, {.algo = algo}); });
    }
    expect_usable(group);
  });
}

TEST_P(GatheringComparing, AContradictionOnOneRankIsAnErrorOnAll) {
  for (int odd = 0; odd < size(); ++odd)
    on_ranks(world(), [&](ProcessGroup& group) {
      const bool bad = group.rank() == odd;
      const RowLayout rows = RowLayout::equal(group.size(), 2);
      const auto mine = array(group, DType::f32, {bad ? 3 : 2, 3});
      const auto whole = array(group, DType::f32, {2 * group.size() + (bad ? 1 : 0), 3});
      const auto refused = [&](const std::function<void()>& call) {
        if (bad)
          expect_error(Errc::invalid_argument, {"rows"}, call);
        else
          expect_error(Errc::mismatch, {"rank " + std::to_string(odd), "refused"}, call);
        expect_usable(group);
      };
      refused([&] { (void)all_gather_rows(group, mine, {.layout = &rows}); });
      refused([&] { (void)all_gather_padded(group, mine, 0, {.layout = &rows}); });
      refused([&] { (void)reduce_scatter_rows(group, whole, rows); });
    });
}

TEST_P(GatheringComparing, AKnownLayoutHidesNoRefusal) {
  for (int odd = 0; odd < size(); ++odd)
    on_ranks(world(), [&](ProcessGroup& group) {
      const bool bad = group.rank() == odd;
      const RowLayout rows = RowLayout::equal(group.size(), 2);
      const GatherOptions options{.layout = &rows};
      const auto refused = [&](const std::string& text, const std::function<void()>& call) {
        if (bad)
          expect_error(Errc::invalid_argument, {text}, call);
        else
          expect_error(Errc::mismatch, {"rank " + std::to_string(odd), "refused"}, call);
        expect_usable(group);
      };
      const auto two = array(group, DType::i32, {2});
      refused("fill 0.5", [&] { (void)all_gather_padded(group, two, bad ? 0.5 : 1, options); });
      const std::vector<ConstTensorView> arrays{two, array(group, DType::i32, {bad ? 3 : 2})};
      refused("2 and 3", [&] { (void)all_gather_rows(group, arrays, options); });
    });
}

/// Has none left.
class FullMemory final : public Memory {
 public:
  Device device() const noexcept override { return {}; }
  void* allocate(std::size_t, Stream) override { fail(Errc::resource_exhausted, "it is full"); }
  void release(void*, std::size_t, Stream) noexcept override {}
  void copy(void*, const void*, std::size_t, Stream) override {}
};

TEST_P(GatheringComparing, ARankWithoutMemoryForItsResultLetsNobodyWait) {
  FullMemory full;
  for (int odd = 0; odd < size(); ++odd)
    on_ranks(world(), [&](ProcessGroup& group) {
      const bool bad = group.rank() == odd;
      const RowLayout rows = RowLayout::equal(group.size(), 2);
      const auto mine = array(group, DType::u8, {2, 40000});  // Does not travel with its size.
      const auto whole = array(group, DType::u8, {2 * group.size(), 40000});
      const auto refused = [&](const auto& call) {
        Memory* memory = bad ? &full : nullptr;
        if (bad)
          expect_error(Errc::resource_exhausted, {"full"}, [&] { call(memory); });
        else
          expect_error(Errc::mismatch, {"rank " + std::to_string(odd), "refused"},
                       [&] { call(memory); });
        expect_usable(group);
      };
      for (const RowLayout* given : {static_cast<const RowLayout*>(nullptr), &rows}) {
        refused(
            [&](Memory* m) { (void)all_gather_rows(group, mine, {.layout = given, .memory = m}); });
        refused([&](Memory* m) {
          (void)all_gather_padded(group, mine, 0, {.layout = given, .memory = m});
        });
        refused([&](Memory* m) {
          (void)gather_rows(group, mine, odd, {.layout = given, .memory = m});
        });
      }
      refused([&](Memory* m) { (void)gather_all_tensors(group, mine, {.memory = m}); });
      refused([&](Memory* m) {
        (void)scatter_rows(group, whole, group.rank() == 0 ? &rows : nullptr, 0, {.memory = m});
      });
      refused([&](Memory* m) {
        (void)reduce_scatter_rows(group, whole, rows, ReduceOp::sum, {.memory = m});
      });
    });
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
