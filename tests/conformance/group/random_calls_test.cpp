#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <deque>
#include <optional>
#include <string_view>

#include <tutti/coalesce.hpp>
#include <tutti/gather.hpp>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"
#include "support/dtypes.hpp"

// Random sequences of calls: blocking, in flight and coalesced, on the group and on sub-groups.

namespace tutti::test {
namespace {

/// The number of calls of a rank in a world: TUTTI_TEST_RANDOM_CALLS.
int calls_per_world() {
  const char* text = std::getenv("TUTTI_TEST_RANDOM_CALLS");
  const std::string_view given = text == nullptr ? "200" : text;
  int calls = 0;
  std::from_chars(given.data(), given.data() + given.size(), calls);
  return calls;
}

/// Random numbers, the same on all ranks.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}
  std::size_t below(std::size_t end) { return mix(seed_, ++drawn_) % end; }
  bool one_in(std::size_t n) { return below(n) == 0; }
  template <typename T>
  const T& of(const std::vector<T>& values) {
    return values[below(values.size())];
  }
  /// From 0 to some 100, seldom to 100,000: past the sizes at which algorithms change.
  std::int64_t rows() {
    return static_cast<std::int64_t>(below(one_in(50) ? 100'000 : std::size_t{1} << below(8)));
  }
  Layout layout(int size) {
    if (one_in(2)) return Layout(index(size), one_in(50) ? 20'000 : rows() % 200);
    Layout layout;
    for (int rank = 0; rank < size; ++rank)
      layout.push_back(static_cast<std::int64_t>(below(one_in(30) ? 9'000 : 9)));
    return layout;
  }

 private:
  std::uint64_t seed_;
  std::uint64_t drawn_ = 0;
};

/// A call and the result that it must give this rank.
struct Call {
  std::string text;
  std::optional<Buffer> in{};
  Array input{};
  std::optional<Buffer> out{};  ///< None where this rank has no output.
  Array want{};
  Work work{};

  void check() {
    work.wait();
    if (in) {
      EXPECT_TRUE(same_bits(in->read(), input)) << text << ": the input was changed";
    }
    if (out) {
      EXPECT_TRUE(same(out->read(), want)) << text;
    }
  }
};

class RandomCall {
 public:
  RandomCall(const World& world, ProcessGroup& group, std::uint64_t seed, bool blocking)
      : world_(world), group_(group), draw_(seed), seed_(seed), blocks_(blocking) {}

  Call make() {
    call_.text =
        fmt::format("{} call on rank {} of {}", blocks_ ? "blocking" : "async", rank_, size_);
    draw_.one_in(2) ? reduce() : move();
    return std::move(call_);
  }

 private:
  void give(const Array& input) {
    call_.input = input;
    call_.in.emplace(group_, input);
  }

  void expect(const Array& want) {
    call_.want = want;
    call_.out.emplace(group_, want.dtype(), want.shape());
  }

  TensorView out() const { return call_.out ? call_.out->view() : TensorView(); }

  void reduce() {
    enum Verb : std::size_t { all_reduce, reduce, reduce_scatter, scan, exclusive_scan };
    const auto verb = draw_.below(5);
    std::vector<ReduceOp::Kind> kinds = kinds_of(dtype_);
    std::erase_if(kinds, [&](ReduceOp::Kind kind) {
      return !reduces(world_.backend, dtype_, kind) ||
             (verb >= scan && kind == ReduceOp::Kind::avg);
    });
    const auto kind = draw_.of(kinds);
    const auto variant = draw_.of(variants(world_.backend, dtype_, kind));
    const auto options = options_of(variant);
    call_.text += fmt::format(", reduction {} of {} {} ({})", verb, name_of(dtype_), name_of(kind),
                              test::to_string(variant));
    const auto layout = draw_.layout(size_);
    const auto count = verb == reduce_scatter ? total(layout) : draw_.rows();
    const auto inputs = make_inputs(dtype_, {count}, size_, variant.fill, kind, seed_);
    const auto scales = make_scales(size_, variant.fill);
    const auto op = op_of(kind, scales, rank_);
    const auto fold = [&](std::size_t ranks) {
      return result_of(variant, kind, std::span(inputs).first(ranks), scales);
    };
    const auto all = fold(verb >= scan ? index(rank_) + 1 : inputs.size());
    give(inputs[index(rank_)]);
    const auto& in = *call_.in;
    if (verb == reduce_scatter)
      expect(all.rows(offset(layout, rank_), layout[index(rank_)]));
    else if (verb == exclusive_scan)
      expect(rank_ == 0 ? identity(kind, dtype_, {count}) : fold(index(rank_)));
    else if (verb != reduce || rank_ == root_)
      expect(all);
    switch (verb) {
      case all_reduce:
        return run([&] { group_.all_reduce(in, out(), op, options); },
                   [&] { return group_.all_reduce_async(in, out(), op, options); });
      case reduce:
        return run([&] { group_.reduce(in, out(), root_, op, options); },
                   [&] { return group_.reduce_async(in, out(), root_, op, options); });
      case reduce_scatter:
        return run([&] { group_.reduce_scatter(in, out(), layout, op, options); },
                   [&] { return group_.reduce_scatter_async(in, out(), layout, op, options); });
      case scan:
        return run([&] { group_.scan(in, out(), op, options); },
                   [&] { return group_.scan_async(in, out(), op, options); });
      default:
        return run([&] { group_.exclusive_scan(in, out(), op, options); },
                   [&] { return group_.exclusive_scan_async(in, out(), op, options); });
    }
  }

  void move() {
    enum Verb : std::size_t { all_gather, gather, scatter, all_to_all, sendrecv, rows, barrier };
    const auto verb = draw_.below(7);
    const Shape row_shape = draw_.of(std::vector<Shape>{{}, {3}, {2, 5}});
    std::vector<Layout> layouts;  // The rows that each rank sends to each.
    for (int rank = 0; rank < size_; ++rank) layouts.push_back(draw_.layout(size_));
    const auto& layout = layouts[0];
    call_.text +=
        fmt::format(", move {} of {}, rows {}", verb, name_of(dtype_), test::to_string(layout));
    const auto parts = make_parts(dtype_, layout, row_shape, seed_);
    const auto next = (rank_ + 1) % size_;
    const auto previous = (rank_ + size_ - 1) % size_;
    switch (verb) {
      case all_gather:
        give(parts[index(rank_)]);
        expect(concat(parts));
        return run([&] { group_.all_gather(*call_.in, out(), layout); },
                   [&] { return group_.all_gather_async(*call_.in, out(), layout); });
      case gather:
        give(parts[index(rank_)]);
        if (rank_ == root_) expect(concat(parts));
        return run([&] { group_.gather(*call_.in, out(), root_, layout); },
                   [&] { return group_.gather_async(*call_.in, out(), root_, layout); });
      case scatter:
        give(rank_ == root_ ? concat(parts) : Array(dtype_, rows_of(0, row_shape)));
        expect(parts[index(rank_)]);
        return run(
            [&] {
              group_.scatter(rank_ == root_ ? call_.in->view() : TensorView(), out(), root_,
                             layout);
            },
            [&] {
              return group_.scatter_async(rank_ == root_ ? call_.in->view() : TensorView(), out(),
                                          root_, layout);
            });
      case all_to_all: {
        std::vector<Array> received;
        Layout from;
        for (int rank = 0; rank < size_; ++rank) {
          const auto& sent = layouts[index(rank)];
          const auto all = make_input(dtype_, rows_of(total(sent), row_shape), rank, size_,
                                      Fill::bits, ReduceOp::Kind::sum, seed_);
          if (rank == rank_) give(all);
          from.push_back(sent[index(rank_)]);
          received.push_back(all.rows(offset(sent, rank_), from.back()));
        }
        expect(concat(received));
        const auto& to = layouts[index(rank_)];
        return run([&] { group_.all_to_all(*call_.in, out(), to, from); },
                   [&] { return group_.all_to_all_async(*call_.in, out(), to, from); });
      }
      case sendrecv:
        if (size_ == 1) return;
        give(parts[index(rank_)]);
        expect(parts[index(previous)]);
        return run([&] { group_.sendrecv(*call_.in, next, out(), previous); },
                   [&] { return group_.sendrecv_async(*call_.in, next, out(), previous); });
      case rows: {
        if (!blocks_) return;
        give(parts[index(rank_)]);
        const auto gathered = all_gather_rows(group_, *call_.in);
        EXPECT_TRUE(same_bits(content_of(group_, gathered.data), concat(parts))) << call_.text;
        EXPECT_EQ(gathered.rows, RowLayout(layout)) << call_.text;
        return;
      }
      default:
        return run([&] { group_.barrier(); }, [&] { return group_.barrier_async(); });
    }
  }

  template <typename Blocking, typename InFlight>
  void run(Blocking blocking, InFlight in_flight) {
    if (blocks_)
      blocking();
    else
      call_.work = in_flight();
  }

  const World& world_;
  ProcessGroup& group_;
  Draws draw_;
  const std::uint64_t seed_;
  const bool blocks_;
  const int rank_ = group_.rank();
  const int size_ = group_.size();
  const int root_ = static_cast<int>(draw_.below(index(size_)));
  const DType dtype_ = all_dtypes[draw_.below(all_dtypes.size())];
  Call call_{};
};

class RandomCalls : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, RandomCalls, testing::ValuesIn(worlds()), CaseName());

TEST_P(RandomCalls, GiveTheirResults) {
  const World& world = GetParam();
  on_fresh_ranks(world,
                 [&](ProcessGroup& group) {
                   const int rank = group.rank();
                   std::vector<int> backwards;
                   for (int r = group.size(); r > 0; --r) backwards.push_back(r - 1);
                   auto half = group.split(rank % 2);
                   auto reversed = group.subset(backwards);
                   const std::array groups{&group, &group, &*half, &*reversed};
                   constexpr std::uint64_t first_seed = 2026;
                   std::deque<Call> in_flight;
                   for (int made = 0; made < calls_per_world() && !testing::Test::HasFailure();) {
                     Draws draw(mix(first_seed, static_cast<std::uint64_t>(made)));
                     auto& on = *groups[draw.below(groups.size())];
                     const bool together = draw.one_in(8);
                     const bool blocking = !together && draw.one_in(2);
                     std::optional<Coalesce> coalesce;
                     if (together) coalesce.emplace(on);
                     const int last = made + (together ? 1 + static_cast<int>(draw.below(4)) : 1);
                     for (; made < last; ++made) {
                       const auto seed = mix(first_seed, static_cast<std::uint64_t>(made), 1);
                       in_flight.push_back(RandomCall(world, on, seed, blocking).make());
                     }
                     if (coalesce) coalesce->launch().wait();
                     for (const auto kept = draw.below(6); in_flight.size() > kept;
                          in_flight.pop_front())
                       in_flight.front().check();
                   }
                   for (auto& call : in_flight) call.check();
                 },
                 {.run = std::chrono::hours(1)});
}

}  // namespace
}  // namespace tutti::test
