#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/gather.hpp>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"
#include "support/dtypes.hpp"
#include "support/memories.hpp"

// Differences between the ranks, and calls that are invalid on one of them: an error on all ranks,
// with the reason, and the group stays usable.

namespace tutti::test {
namespace {

class GatherRefusal : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int size() const { return GetParam().size; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherRefusal, testing::ValuesIn(worlds()), CaseName());

class GatherRefusalOfSeveral : public GatherRefusal {};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherRefusalOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

class GatherRefusalComparing : public GatherRefusal {};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherRefusalComparing, testing::ValuesIn(worlds_that_compare()),
                         CaseName());

class GatherRefusalOfOne : public GatherRefusal {};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherRefusalOfOne, testing::ValuesIn(worlds_that_refuse()),
                         CaseName());

// Only the number of rows is too large: no rank could store the sum.
TEST_P(GatherRefusalOfSeveral, MoreRowsThanFitAreRefusedEverywhere) {
  on_ranks(world(), [](ProcessGroup& group) {
    const ConstTensorView mine(nullptr, DType::u8, {std::int64_t{1} << 62, 0},
                               group.memory().device());
    expect_error(Errc::count_overflow, {"2^63", std::to_string(std::int64_t{1} << 62)},
                 [&] { (void)all_gather_rows(group, mine); });
    expect_usable(group);
  });
}

/// A gather in which one rank makes another call.
struct Disagreement {
  std::string name;
  std::vector<std::string> texts;
  std::function<void(ProcessGroup& group, bool other)> call;
};

/// Memory of arrays whose contents do not matter.
ConstTensorView array(ProcessGroup& group, DType dtype, const Shape& shape) {
  static const std::vector<std::byte> zeros(std::size_t{1} << 20);  // Enough for all arrays.
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

// Also in normal mode, because the messages themselves have the comparison.
TEST_P(GatherRefusalOfSeveral, WhatTheRanksDisagreeAboutIsNamedOnEveryRank) {
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

/// A gather that is invalid on one rank.
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
       {"arrays of one gather", "2 and 3"},
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

TEST_P(GatherRefusal, WhatOneRankCannotDoIsAnErrorOnAll) {
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

TEST_P(GatherRefusal, FillsHaveToBeValuesOfTheDType) {
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
      for (const RowLayout& given : {RowLayout(), rows})
        expect_error(Errc::invalid_argument, {"fill", std::string(name_of(dtype))},
                     [&, d = dtype, v = value] {
                       (void)all_gather_padded(group, array(group, d, {2}), v, given);
                     });
    expect_usable(group);
  });
}

struct BadRoot {
  std::string name;
  std::vector<std::string> texts;
  std::function<void(ConstTensorView& whole, RowLayout& rows)> spoil;
};

// Only root knows its array, and sends its refusal to the other ranks.
TEST_P(GatherRefusal, WhatRootCannotScatterIsAnErrorOnAll) {
  const std::vector<BadRoot> bad{
      {"no rows",
       {"rows has 0 entries; the world size is"},
       [](auto&, RowLayout& rows) { rows = RowLayout(); }},
      {"null", {"null"}, [](auto& whole, auto&) { whole.data = nullptr; }},
      {"unknown dtype", {"77"}, [](auto& whole, auto&) { whole.dtype = static_cast<DType>(77); }},
      {"too many ranks",
       {"entries; the world size is"},
       [](auto&, RowLayout& rows) { rows = RowLayout::equal(rows.ranks() + 1, 2); }},
      {"another total",
       {"rows; the argument rows has"},
       [](auto&, RowLayout& rows) { rows = RowLayout::equal(rows.ranks(), 3); }},
  };
  for (const BadRoot& b : bad)
    for (int root = 0; root < size(); ++root)
      on_ranks(world(), [&](ProcessGroup& group) {
        SCOPED_TRACE(b.name);
        const bool at_root = group.rank() == root;
        RowLayout rows = RowLayout::equal(group.size(), 2);
        ConstTensorView whole = array(group, DType::f32, {2 * group.size(), 3});
        if (at_root)
          b.spoil(whole, rows);
        else
          rows = RowLayout();
        const std::vector<std::string> told{"rank " + std::to_string(root), "refused scatter_rows"};
        const Error error = expect_error(at_root ? Errc::invalid_argument : Errc::mismatch,
                                         at_root ? b.texts : told,
                                         [&] { (void)scatter_rows(group, whole, rows, root); });
        EXPECT_EQ(error.where().rank, root);
        expect_usable(group);
      });
}

/// Layouts that contradict the arrays of a group of this size with 2 rows on each rank.
std::vector<RowLayout> wrong_layouts(int size) {
  return {RowLayout::equal(size, 3),     RowLayout::equal(size, 1),     RowLayout::equal(size, 0),
          RowLayout::equal(size + 1, 2), RowLayout::equal(size - 1, 2), RowLayout()};
}

TEST_P(GatherRefusal, ALayoutThatContradictsTheArrayIsRefused) {
  on_ranks(world(), [](ProcessGroup& group) {
    const auto mine = array(group, DType::f32, {2, 3});
    for (const RowLayout& wrong : wrong_layouts(group.size())) {
      SCOPED_TRACE(to_string(wrong));
      const auto refused = [&](const std::function<void()>& call) {
        const bool every_rank = wrong.ranks() == group.size();
        expect_error(Errc::invalid_argument,
                     every_rank ? std::vector<std::string>{"rows"}
                                : std::vector{std::to_string(wrong.ranks()) + " entries",
                                              "world size is " + std::to_string(group.size())},
                     call);
      };
      if (wrong.ranks() != 0) {  // Otherwise the counts are exchanged.
        refused([&] { (void)all_gather_rows(group, mine, wrong); });
        refused([&] { (void)all_gather_padded(group, mine, 0, wrong); });
        refused([&] { (void)gather_rows(group, mine, 0, wrong); });
      }
      const Buffer out(group, DType::f32, {wrong.total(), 3});
      refused([&] { all_gather_rows(group, mine, out, wrong); });
      const auto whole = array(group, DType::f32, {2 * group.size(), 3});
      refused([&] { (void)reduce_scatter_rows(group, whole, wrong); });
    }
    expect_usable(group);
  });
}

TEST_P(GatherRefusal, AnOutputThatContradictsTheLayoutIsRefused) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int n = group.size();
    const RowLayout rows = RowLayout::equal(n, 2);
    const auto mine = array(group, DType::f32, {2, 3});
    const auto refused = [&](DType dtype, const Shape& shape, const std::string& text) {
      const Buffer out(group, dtype, shape);
      expect_error(Errc::invalid_argument, {text},
                   [&] { all_gather_rows(group, mine, out, rows); });
    };
    refused(DType::f32, {2 * n + 1, 3}, "rows");
    refused(DType::f32, {2 * n, 4}, "[2, 3]");
    refused(DType::i32, {2 * n, 3}, "i32");
    const TensorView null(nullptr, DType::f32, {2 * n, 3}, group.memory().device());
    expect_error(Errc::invalid_argument, {"null"},
                 [&] { all_gather_rows(group, mine, null, rows); });
    expect_usable(group);
  });
}

TEST_P(GatherRefusalOfOne, AContradictionOnOneRankIsAnErrorOnAll) {
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
      refused([&] { (void)all_gather_rows(group, mine, rows); });
      refused([&] { (void)all_gather_padded(group, mine, 0, rows); });
      refused([&] { (void)reduce_scatter_rows(group, whole, rows); });
    });
}

TEST_P(GatherRefusalOfOne, AKnownLayoutHidesNoRefusal) {
  for (int odd = 0; odd < size(); ++odd)
    on_ranks(world(), [&](ProcessGroup& group) {
      const bool bad = group.rank() == odd;
      const RowLayout rows = RowLayout::equal(group.size(), 2);
      const auto refused = [&](const std::string& text, const std::function<void()>& call) {
        if (bad)
          expect_error(Errc::invalid_argument, {text}, call);
        else
          expect_error(Errc::mismatch, {"rank " + std::to_string(odd), "refused"}, call);
        expect_usable(group);
      };
      const auto two = array(group, DType::i32, {2});
      refused("fill 0.5", [&] { (void)all_gather_padded(group, two, bad ? 0.5 : 1, rows); });
      const std::vector<ConstTensorView> arrays{two, array(group, DType::i32, {bad ? 3 : 2})};
      refused("2 and 3", [&] { (void)all_gather_rows(group, arrays, rows); });
    });
}

TEST_P(GatherRefusalComparing, AMemoryThatThrowsAnExceptionOfItsOwnLetsNoRankWait) {
  FailingMemory foreign([](std::size_t) { throw std::runtime_error("it is foreign"); });
  for (int odd = 0; odd < size(); ++odd)
    on_ranks(world(), [&](ProcessGroup& group) {
      const bool bad = group.rank() == odd;
      const RowLayout rows = RowLayout::equal(group.size(), 2);
      const auto mine = array(group, DType::u8, {2, 40000});
      for (const RowLayout& given : {RowLayout(), rows}) {
        const CallOptions options{.memory = bad ? &foreign : nullptr};
        const auto call = [&] { (void)all_gather_rows(group, mine, given, options); };
        if (bad)
          expect_error(Errc::backend, {"foreign"}, call);
        else
          expect_error(Errc::mismatch, {"rank " + std::to_string(odd), "refused"}, call);
        expect_usable(group);
      }
    });
}

TEST_P(GatherRefusalComparing, ARankWithoutMemoryForItsResultLetsNoRankWait) {
  FailingMemory full([](std::size_t) { fail(Errc::resource_exhausted, "it is full"); });
  for (int odd = 0; odd < size(); ++odd)
    on_ranks(world(), [&](ProcessGroup& group) {
      const bool bad = group.rank() == odd;
      const RowLayout rows = RowLayout::equal(group.size(), 2);
      const auto mine = array(group, DType::u8, {2, 40000});  // Too large to be inlined.
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
      for (const RowLayout& given : {RowLayout(), rows}) {
        refused([&](Memory* m) { (void)all_gather_rows(group, mine, given, {.memory = m}); });
        refused([&](Memory* m) { (void)all_gather_padded(group, mine, 0, given, {.memory = m}); });
        refused([&](Memory* m) { (void)gather_rows(group, mine, odd, given, {.memory = m}); });
      }
      refused([&](Memory* m) { (void)gather_all_tensors(group, mine, {.memory = m}); });
      refused([&](Memory* m) {
        (void)scatter_rows(group, whole, group.rank() == 0 ? rows : RowLayout(), 0, {.memory = m});
      });
      refused([&](Memory* m) {
        (void)reduce_scatter_rows(group, whole, rows, ReduceOp::sum, {.memory = m});
      });
    });
}

}  // namespace
}  // namespace tutti::test
