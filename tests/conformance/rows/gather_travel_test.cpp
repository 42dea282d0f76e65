#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/backend/forwarding_backend.hpp>
#include <tutti/gather.hpp>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"

// The messages that carry rows, and the caller's memory that the transport accesses.

namespace tutti::test {
namespace {

class GatherTravel : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int size() const { return GetParam().size; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherTravel, testing::ValuesIn(worlds()), CaseName());

class GatherTravelOfSeveral : public GatherTravel {};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherTravelOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

struct Rowed {
  Layout layout;
  Shape row_shape;
};

/// Edge cases: no rows, one rank only, rows without bytes, one byte more or less than the inlined
/// limit, rows larger than a segment of a ring.
std::vector<Rowed> rowed_layouts(int size) {
  const auto ranks = index(size);
  std::vector<Rowed> all{{Layout(ranks, 0), {}}, {Layout(ranks, 0), {3}}};
  for (const Layout& layout : layouts(size)) {
    all.push_back({layout, {}});
    all.push_back({layout, {257}});
    all.push_back({layout, {0}});
    all.push_back({layout, {2, 0, 3}});
  }
  for (const std::int64_t bytes : {max_inlined - 1, max_inlined, max_inlined + 1}) {
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

// Many segments of a ring: a rank that waited for a send before receiving would wait for ever.
TEST_P(GatherTravelOfSeveral, LargeBlocksArrive) {
  // A sanitizer checks each byte, and so does the double of a device.
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
      const Buffer out(group, DType::u8, {rows.total()});
      all_gather_rows(group, mine, out, rows);
      EXPECT_TRUE(same_bits(out.read(), want));
    });
  }
}

TEST_P(GatherTravel, AnyLayoutGivesTheRowsInRankOrder) {
  for (const Rowed& rowed : rowed_layouts(size())) {
    const auto parts = make_parts(DType::u8, rowed.layout, rowed.row_shape);
    const Array want = concat(parts);
    const RowLayout rows(rowed.layout);
    on_ranks(world(), [&](ProcessGroup& group) {
      const Array& mine = parts[index(group.rank())];
      const Buffer in(group, mine);
      SCOPED_TRACE(
          fmt::format("rows {} of {}", to_string(rowed.layout), to_string(rowed.row_shape)));
      const Buffer out(group, DType::u8, want.shape());
      all_gather_rows(group, in, out, rows);
      EXPECT_TRUE(same_bits(out.read(), want)) << "with rows";
      const auto unknown = all_gather_rows(group, in);
      EXPECT_TRUE(same_bits(content_of(group, unknown.data), want)) << "without one";
      EXPECT_EQ(unknown.rows, rows);
      EXPECT_TRUE(same_bits(in.read(), mine)) << "the input was changed";
    });
  }
}

TEST_P(GatherTravel, RowsMayLieInTheResult) {
  for (const Layout& layout : layouts(size())) {
    const auto parts = make_parts(DType::i32, layout, {2});
    const Array want = concat(parts);
    const RowLayout rows(layout);
    on_ranks(world(), [&](ProcessGroup& group) {
      SCOPED_TRACE("rows " + to_string(layout));
      const Buffer out(group, DType::i32, want.shape());
      const Array& mine = parts[index(group.rank())];
      const TensorView own = out.rows(rows.offset(group.rank()), rows[group.rank()]);
      if (own.bytes() != 0) group.memory().copy(own.data, mine.bytes().data(), own.bytes(), {});
      all_gather_rows(group, own, out, rows);
      EXPECT_TRUE(same_bits(out.read(), want));
    });
  }
}

// Several pending gathers, whose messages must not mix.
TEST_P(GatherTravel, CallsOneBehindTheOtherDoNotMix) {
  Layout layout(index(size()), 4);
  layout.front() = 1;
  const RowLayout rows(layout);
  const auto parts = make_parts(DType::u64, layout, {3});
  on_ranks(world(), [&](ProcessGroup& group) {
    for (int round = 0; round < 20; ++round) {
      std::vector<Array> changed = parts;
      for (Array& part : changed) part.put<std::uint64_t>(0, mix(index(round)));
      const Buffer in(group, changed[index(group.rank())]);
      const auto all = all_gather_rows(group, in, rows);
      EXPECT_TRUE(same_bits(content_of(group, all.data), concat(changed)));
    }
  });
}

/// Records the arrays that this rank passes to the transport.
class Listener final : public ForwardingBackend {
 public:
  Listener(std::unique_ptr<Backend> inner, int rank, std::vector<std::string>& sent)
      : ForwardingBackend(std::move(inner)), rank_(rank), sent_(sent) {}

  Work launch(std::span<const Op> ops, const Call& call) override {
    for (const Op& op : ops)
      if (op.in.bytes() != 0 && sends(op))
        memory().copy(sent_.emplace_back(op.in.bytes(), '\0').data(), op.in.data, op.in.bytes(),
                      call.stream);
    return ForwardingBackend::launch(ops, call);
  }

 private:
  /// The received bytes are in `in`, too, which may hold any bytes before.
  bool sends(const Op& op) const {
    const bool of_root = op.kind == Operation::broadcast || op.kind == Operation::scatter;
    return op.kind != Operation::recv && (!of_root || op.root == rank_);
  }

  int rank_;
  std::vector<std::string>& sent_;
};

TEST_P(GatherTravelOfSeveral, NothingTravelsButTheRows) {
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
        // Rank 0 has most rows, the last one a single row.
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
        (void)all_gather_rows(group, local, rows);
        expect_clean("all_gather_rows with rows");
        (void)all_gather_padded(group, local, 0, rows);
        ASSERT_EQ(heard.size(), 1U);
        std::string padding = text;
        padding.resize(static_cast<std::size_t>(rows.max() * row_bytes), '\0');
        EXPECT_EQ(heard[0], padding);
        expect_clean("all_gather_padded with rows");
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
