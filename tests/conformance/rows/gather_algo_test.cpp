#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/gather.hpp>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"
#include "conformance/rows/gather_algos.hpp"
#include "support/forward_backend.hpp"

// How rows travel: every algorithm, and what of the caller's memory it shows to anybody.

namespace tutti::test {
namespace {

constexpr std::int64_t along = 65536;  ///< So many bytes travel with the sizes.

class GatherAlgos : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int size() const { return GetParam().size; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherAlgos, testing::ValuesIn(worlds()), CaseName());

class GatherAlgosOfSeveral : public GatherAlgos {};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherAlgosOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

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

// Many segments of the ring: whoever waits for a send before it receives, waits for ever.
TEST_P(GatherAlgosOfSeveral, LargeBlocksArriveByEveryAlgorithm) {
  // A sanitizer looks at each byte, and so does a double of a device.
  const bool small = reduced() || world().backend == "nccl_double";
  const std::int64_t large = small ? 600 << 10 : 9 << 20;
  for (const bool one_only : {false, true}) {
    std::vector<std::int64_t> counts(index(size()), one_only ? 0 : large);
    counts.back() = large + 3;
    const RowLayout rows(counts);
    std::vector<Array> parts;
    for (int r = 0; r < size(); ++r) {
      parts.emplace_back(DType::u8, Shape{rows[r]});
      std::ranges::fill(parts.back().bytes(), static_cast<std::byte>(r + 1));
    }
    const Array want = concat(parts);
    on_ranks(world(), [&](ProcessGroup& group) {
      const Buffer mine(group, parts[index(group.rank())]);
      for (const GatherAlgo algo : all_gather_algos) {
        SCOPED_TRACE(name_of(algo));
        const Buffer out(group, DType::u8, {rows.total()});
        all_gather_rows(group, mine, out, rows, {.algo = algo});
        EXPECT_TRUE(same_bits(out.read(), want));
      }
    });
  }
}

TEST_P(GatherAlgos, EveryAlgorithmGivesTheSameBytes) {
  for (const Rowed& rowed : rowed_layouts(size())) {
    const auto parts = make_parts(DType::u8, rowed.layout, rowed.row_shape);
    const Array want = concat(parts);
    const RowLayout rows(rowed.layout);
    on_ranks(world(), [&](ProcessGroup& group) {
      const Array& mine = parts[index(group.rank())];
      const Buffer in(group, mine);
      for (const GatherAlgo algo : all_gather_algos) {
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

TEST_P(GatherAlgos, EveryAlgorithmWorksInPlace) {
  for (const Layout& layout : layouts(size())) {
    const auto parts = make_parts(DType::i32, layout, {2});
    const Array want = concat(parts);
    const RowLayout rows(layout);
    on_ranks(world(), [&](ProcessGroup& group) {
      for (const GatherAlgo algo : all_gather_algos) {
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
TEST_P(GatherAlgos, AlgorithmsOneBehindTheOtherDoNotMix) {
  Layout layout(index(size()), 4);
  layout.front() = 1;
  const RowLayout rows(layout);
  const auto parts = make_parts(DType::u64, layout, {3});
  on_ranks(world(), [&](ProcessGroup& group) {
    for (int round = 0; round < 20; ++round) {
      const auto algo = all_gather_algos[index(round) % all_gather_algos.size()];
      std::vector<Array> changed = parts;
      for (Array& part : changed) part.put<std::uint64_t>(0, mix(index(round)));
      const Buffer in(group, changed[index(group.rank())]);
      const auto all = all_gather_rows(group, in, {.layout = &rows, .algo = algo});
      EXPECT_TRUE(same_bits(content_of(group, all.data), concat(changed))) << name_of(algo);
    }
  });
}

TEST_P(GatherAlgos, AnUnknownAlgorithmIsRefused) {
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

TEST_P(GatherAlgos, TheTableChoosesAnAlgorithmThatExists) {
  on_ranks(world(), [](ProcessGroup& group) {
    for (const Layout& layout : layouts(group.size()))
      for (const std::size_t row_bytes : {std::size_t{1}, std::size_t{1} << 20}) {
        const GatherAlgo chosen = choose_gather_algo(group, RowLayout(layout), row_bytes);
        EXPECT_NE(chosen, GatherAlgo::automatic);
        EXPECT_NE(describe_gather_table().find(name_of(chosen)), std::string::npos);
      }
  });
}

/// Writes down what this rank gives to the transport.
class Listener final : public ForwardBackend {
 public:
  Listener(std::unique_ptr<Backend> inner, int rank, std::vector<std::string>& sent)
      : ForwardBackend(std::move(inner)), rank_(rank), sent_(sent) {}

  Work launch(std::span<const Op> ops, const Call& call) override {
    for (const Op& op : ops)
      if (op.in.bytes() != 0 && sends(op))
        memory().copy(sent_.emplace_back(op.in.bytes(), '\0').data(), op.in.data, op.in.bytes(),
                      call.stream);
    return ForwardBackend::launch(ops, call);
  }

 private:
  /// What is received lies in `in`, too, and holds whatever was there before.
  bool sends(const Op& op) const {
    const bool of_root = op.kind == Operation::broadcast || op.kind == Operation::scatter;
    return op.kind != Operation::recv && (!of_root || op.root == rank_);
  }

  int rank_;
  std::vector<std::string>& sent_;
};

TEST_P(GatherAlgosOfSeveral, NothingTravelsButTheRows) {
  constexpr std::int64_t row_bytes = 5;
  const std::string neighbour(64, '\xA7');
  PerRank<std::vector<std::string>> sent(size());
  Fresh fresh;
  fresh.adjust = [&](GroupOptions& options) {
    options.decorate = [&sent, rank = options.rank](std::unique_ptr<Backend> inner) {
      return std::make_unique<Listener>(std::move(inner), rank, sent[rank]);
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
        const std::string around = neighbour + text + neighbour;
        Array content(DType::u8, {std::ssize(around)});
        std::memcpy(content.bytes().data(), around.data(), around.size());
        const Buffer block(group, content);
        const auto first = std::ssize(neighbour);
        const ConstTensorView local(block.rows(first, mine * row_bytes).data, DType::u8,
                                    {mine, row_bytes}, group.memory().device());
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
        for (const GatherAlgo algo : all_gather_algos) {
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

}  // namespace
}  // namespace tutti::test
