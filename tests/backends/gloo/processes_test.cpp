// The matrix of tests/conformance with ranks as processes, which share no memory: every operation,
// dtype, reduce op and layout over 1 to 4 ranks, in both modes. Every rank checks its own results.

#include <span>

#include <fmt/format.h>

#include "conformance/cells.hpp"
#include "rank_processes.hpp"
#include "support/dtypes.hpp"

namespace tutti::test {
namespace {

/// The group options of the World, with the store of the processes.
void on_world(const World& world, const std::function<void(ProcessGroup& group)>& body) {
  on_processes({.size = world.size, .limit = 120s}, [&](RankProcess& rank) {
    rank.use_tcp();
    auto options = rank.options("matrix");
    options.backend = world.backend;
    options.checked = world.checked;
    auto group = ProcessGroup::create(options);
    body(group);
    group.barrier();
    return std::string();
  });
}

/// Up to 4099 elements, and one count that goes in rows of messages.
std::vector<std::int64_t> counts_of(DType dtype) {
  auto all = counts();
  if (dtype == DType::f32) all.push_back(300'001);
  return all;
}

class RanksAsProcesses : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  /// Each pair of a dtype and a reduce op with a meaning.
  static void for_each_reduction(const std::function<void(DType, ReduceOp::Kind)>& body) {
    for (const DType dtype : all_dtypes)
      for (const auto kind : kinds_of(dtype)) {
        SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), name_of(kind)));
        body(dtype, kind);
      }
  }
};

std::vector<World> worlds_of_processes() {
  auto all = worlds();
  std::erase_if(all, [](const World& world) {  // hier:local+gloo too.
    return world.backend.find("local") != std::string::npos;
  });
  return all;
}
INSTANTIATE_TEST_SUITE_P(Worlds, RanksAsProcesses, testing::ValuesIn(worlds_of_processes()),
                         CaseName());

TEST_P(RanksAsProcesses, ReduceRight) {
  on_world(world(), [](ProcessGroup& group) {
    const int n = group.size();
    const int me = group.rank();
    for_each_reduction([&](DType dtype, ReduceOp::Kind kind) {
      for (const Variant& variant : variants(group.backend()))
        for (const std::int64_t count : counts_of(dtype)) {
          SCOPED_TRACE(to_string(variant) + ", count " + std::to_string(count));
          const auto inputs = make_inputs(dtype, {count}, n, variant.fill, kind);
          const auto scales = make_scales(n, variant.fill);
          const Array want = reduce_in_order(kind, inputs, scales);
          const ReduceOp op = op_of(kind, scales, me);
          const auto options = options_of(variant);
          const Buffer in(group, inputs[index(me)]);
          const Buffer out(group, dtype, {count});
          group.all_reduce(in, out, op, options);
          EXPECT_TRUE(same(out.read(), want)) << "all_reduce";
          const int root = static_cast<int>(count % n);
          const Buffer at_root(group, dtype, {count});
          group.reduce(in, at_root, root, op, options);
          if (me == root) {
            EXPECT_TRUE(same(at_root.read(), want)) << "reduce";
          }
          if (kind != ReduceOp::Kind::avg) {
            const auto first = [&](int ranks) {
              return reduce_in_order(kind, std::span(inputs).first(index(ranks)),
                                     std::span(scales).first(index(ranks)));
            };
            const Buffer before(group, dtype, {count});
            group.scan(in, before, op, options);
            EXPECT_TRUE(same(before.read(), first(me + 1))) << "scan";
            group.exclusive_scan(in, before, op, options);
            EXPECT_TRUE(same(before.read(), me == 0 ? identity(kind, dtype, {count}) : first(me)))
                << "exclusive_scan";
          }
          EXPECT_TRUE(same_bits(in.read(), inputs[index(me)])) << "the input was changed";
        }
    });
  });
}

TEST_P(RanksAsProcesses, ReduceScatterRows) {
  on_world(world(), [](ProcessGroup& group) {
    const int n = group.size();
    const int me = group.rank();
    for_each_reduction([&](DType dtype, ReduceOp::Kind kind) {
      for (const Variant& variant : variants(group.backend()))
        for (const Layout& layout : layouts(n)) {
          SCOPED_TRACE(to_string(variant) + ", rows " + to_string(layout));
          const Shape shape = rows_of(total(layout), {37});
          const auto inputs = make_inputs(dtype, shape, n, variant.fill, kind);
          const auto scales = make_scales(n, variant.fill);
          const Array want =
              reduce_in_order(kind, inputs, scales).rows(offset(layout, me), layout[index(me)]);
          const Buffer in(group, inputs[index(me)]);
          const Buffer out(group, dtype, rows_of(layout[index(me)], {37}));
          group.reduce_scatter(in, out, layout, op_of(kind, scales, me), options_of(variant));
          EXPECT_TRUE(same(out.read(), want));
        }
    });
  });
}

TEST_P(RanksAsProcesses, MoveRows) {
  on_world(world(), [](ProcessGroup& group) {
    const int n = group.size();
    const int me = group.rank();
    for (const DType dtype : all_dtypes)
      for (const Shape& row_shape : {Shape{}, Shape{3}, Shape{257}, Shape{2, 20'011}})
        for (const Layout& layout : layouts(n)) {
          SCOPED_TRACE(fmt::format("{} rows {}", name_of(dtype), to_string(layout)));
          const auto parts = make_parts(dtype, layout, row_shape);
          const Array whole = concat(parts);
          const int root = static_cast<int>(total(layout) % n);
          const Buffer mine(group, parts[index(me)]);
          const Buffer all(group, dtype, whole.shape());
          group.all_gather(mine, all, layout);
          EXPECT_TRUE(same_bits(all.read(), whole)) << "all_gather";

          const Buffer at_root(group, dtype, whole.shape());
          group.gather(mine, at_root, root, layout);
          if (me == root) {
            EXPECT_TRUE(same_bits(at_root.read(), whole)) << "gather";
          }

          const Buffer source(group, me == root ? whole : Array(dtype, whole.shape()));
          const Buffer part(group, dtype, parts[index(me)].shape());
          group.scatter(source, part, root, layout);
          EXPECT_TRUE(same_bits(part.read(), parts[index(me)])) << "scatter";
          group.broadcast(source, root);
          EXPECT_TRUE(same_bits(source.read(), whole)) << "broadcast";

          // Rank r sends layout[j] rows to rank j.
          std::vector<Array> sent;
          for (int r = 0; r < n; ++r)
            sent.push_back(
                make_input(dtype, whole.shape(), r, n, Fill::bits, ReduceOp::Kind::sum, 5));
          std::vector<Array> want;
          for (const Array& from : sent)
            want.push_back(from.rows(offset(layout, me), layout[index(me)]));
          const Layout from_each(index(n), layout[index(me)]);
          const Buffer out(group, sent[index(me)]);
          const Buffer in(group, dtype, rows_of(total(from_each), row_shape));
          group.all_to_all(out, in, layout, from_each);
          EXPECT_TRUE(same_bits(in.read(), concat(want))) << "all_to_all";
        }
  });
}

TEST_P(RanksAsProcesses, SendAndReceive) {
  on_world(world(), [](ProcessGroup& group) {
    const int n = group.size();
    const int me = group.rank();
    const int next = (me + 1) % n;
    const int prev = (me + n - 1) % n;
    for (const DType dtype : all_dtypes)
      for (const std::int64_t count : counts_of(dtype)) {
        const auto all = make_inputs(dtype, {count}, n, Fill::bits);
        const Buffer out(group, all[index(me)]);
        const Buffer in(group, dtype, {count});
        Work sent = group.send_async(out, next, 7);
        group.recv(in, prev, 7);
        sent.wait();
        EXPECT_TRUE(same_bits(in.read(), all[index(prev)])) << name_of(dtype) << " " << count;
      }
  });
}

TEST_P(RanksAsProcesses, WorkInSubGroupsAndAsynchronously) {
  on_world(world(), [](ProcessGroup& group) {
    auto part = group.split(group.rank() % 2, -group.rank());
    expect_usable(*part);
    for (int i = 0; i < 20; ++i) {
      const Buffer a(group, array_of<std::int32_t>({1}));
      const Buffer b(*part, array_of<std::int32_t>({10}));
      Work first = group.all_reduce_async(a);
      Work second = part->all_reduce_async(b);
      second.wait();
      first.wait();
      EXPECT_TRUE(same(a.read(), array_of<std::int32_t>({group.size()})));
      EXPECT_TRUE(same(b.read(), array_of<std::int32_t>({10 * part->size()})));
      group.barrier();
    }
  });
}

}  // namespace
}  // namespace tutti::test
