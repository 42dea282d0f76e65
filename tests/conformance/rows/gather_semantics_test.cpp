#include <string>
#include <vector>

#include <tutti/gather.hpp>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"

// The edge cases of torchmetrics' gather_all_tensors, including those in which its versions hang,
// crash or disagree. Adapters test arrays that are not contiguous: a view has no strides.

namespace tutti::test {
namespace {

class GatherSemantics : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int size() const { return GetParam().size; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherSemantics, testing::ValuesIn(worlds()), CaseName());

class GatherSemanticsOfSeveral : public GatherSemantics {};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherSemanticsOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

/// Rank r passes an array of shapes[r]; every rank gets all arrays, each in its own shape.
void expect_gathered(const World& world, DType dtype, const std::vector<Shape>& shapes) {
  std::vector<Array> arrays;
  for (std::size_t r = 0; r < shapes.size(); ++r)
    arrays.push_back(make_input(dtype, shapes[r], static_cast<int>(r), world.size, Fill::bits));
  on_ranks(world, [&](ProcessGroup& group) {
    const Buffer mine(group, arrays[index(group.rank())]);
    const auto all = gather_all_tensors(group, mine);
    ASSERT_EQ(all.size(), arrays.size());
    for (std::size_t r = 0; r < all.size(); ++r)
      EXPECT_TRUE(same_bits(content_of(group, all[r]), arrays[r])) << "of rank " << r;
    EXPECT_TRUE(same_bits(mine.read(), arrays[index(group.rank())])) << "the input was changed";
  });
}

/// Calls `of` for the shape of each rank.
template <typename Of>
std::vector<Shape> shapes_of(int size, const Of& of) {
  std::vector<Shape> shapes;
  for (int r = 0; r < size; ++r) shapes.push_back(of(r));
  return shapes;
}

TEST_P(GatherSemantics, EqualShapesGiveOneArrayPerRank) {
  for (const Shape& shape : {Shape{4}, Shape{2, 3}, Shape{1, 1, 1, 1, 1, 1, 1, 2}})
    expect_gathered(world(), DType::f32, shapes_of(size(), [&](int) { return shape; }));
}

TEST_P(GatherSemantics, ZeroDimensionalArraysStayZeroDimensional) {
  expect_gathered(world(), DType::f64, shapes_of(size(), [](int) { return Shape{}; }));
}

TEST_P(GatherSemantics, TheFirstDimensionMayDiffer) {
  expect_gathered(world(), DType::f32, shapes_of(size(), [](int r) { return Shape{r + 1, 3}; }));
}

TEST_P(GatherSemantics, EveryDimensionMayDiffer) {
  expect_gathered(world(), DType::f32, shapes_of(size(), [](int r) {
                    return r % 2 == 0 ? Shape{1, 3} : Shape{2, 2};
                  }));
  expect_gathered(world(), DType::i64, shapes_of(size(), [](int r) {
                    return Shape{r + 1, 4 - r, 1 + r % 2, 2};
                  }));
}

TEST_P(GatherSemantics, OneRankMayBeEmpty) {
  for (int empty = 0; empty < size(); ++empty) {
    expect_gathered(world(), DType::f32, shapes_of(size(), [&](int r) {
                      return Shape{r == empty ? 0 : 2, 3};
                    }));
    expect_gathered(world(), DType::f32, shapes_of(size(), [&](int r) {
                      return Shape{2, r == empty ? 0 : 3};
                    }));
  }
}

TEST_P(GatherSemantics, AllMayBeEmpty) {
  expect_gathered(world(), DType::f32, shapes_of(size(), [](int) { return Shape{0}; }));
  expect_gathered(world(), DType::f32, shapes_of(size(), [](int r) { return Shape{0, r}; }));
  expect_gathered(world(), DType::f32, shapes_of(size(), [](int r) { return Shape{r, 0, 5}; }));
}

TEST_P(GatherSemantics, BooleansTravelLikeBytes) {
  expect_gathered(world(), DType::boolean, shapes_of(size(), [](int r) { return Shape{r + 2}; }));
}

// Larger than inlined arrays.
TEST_P(GatherSemantics, LargeArraysTakeTheSecondRound) {
  expect_gathered(world(), DType::u8, shapes_of(size(), [](int r) {
                    return Shape{3, r == 0 ? 30000 : 7};
                  }));
  expect_gathered(world(), DType::i32, shapes_of(size(), [](int r) {
                    return r % 2 == 0 ? Shape{257, 129} : Shape{129, 257};
                  }));
}

TEST_P(GatherSemantics, TheOwnSlotIsACopy) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Array before = array_of<std::int32_t>({group.rank(), 5});
    const Buffer mine(group, before);
    const auto all = gather_all_tensors(group, mine);
    const Tensor& own = all[index(group.rank())];
    EXPECT_NE(own.data(), mine.view().data);
    mine.write(array_of<std::int32_t>({-1, -1}));
    EXPECT_TRUE(same(content_of(group, own), before));
  });
}

TEST_P(GatherSemantics, SmallArraysAreOneCall) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer mine(group, DType::f32, {group.rank() + 1, 2});
    const auto before = calls_of(group);
    (void)gather_all_tensors(group, mine);
    EXPECT_EQ(calls_of(group), before + (inlines(group) ? 1U : 2U)) << "there is no barrier";
  });
}

// The order is that of the ranks in the group, not in the world.
TEST_P(GatherSemantics, ASubGroupGathersInItsOwnOrder) {
  on_ranks(world(), [](ProcessGroup& group) {
    auto reversed = group.split(0, -group.rank());
    ASSERT_TRUE(reversed.has_value());
    const Buffer mine(group, array_of<std::int32_t>({group.rank()}));
    const auto all = gather_all_tensors(*reversed, mine);
    const GatheredRows rows = all_gather_rows(*reversed, mine);
    const Array together = content_of(group, rows.data);
    ASSERT_EQ(all.size(), index(group.size()));
    for (int r = 0; r < group.size(); ++r) {
      const int world_rank = group.size() - 1 - r;
      EXPECT_TRUE(same(content_of(group, all[index(r)]), array_of<std::int32_t>({world_rank})));
      EXPECT_EQ(together.get<std::int32_t>(r), world_rank);
    }
    // In two groups at once, each with its own ranks only.
    auto part = group.split(group.rank() % 2);
    ASSERT_TRUE(part.has_value());
    const auto some = gather_all_tensors(*part, mine);
    ASSERT_EQ(some.size(), index(part->size()));
    for (int r = 0; r < part->size(); ++r)
      EXPECT_TRUE(same(content_of(group, some[index(r)]),
                       array_of<std::int32_t>({group.rank() % 2 + 2 * r})));
  });
}

struct Difference {
  std::string name;
  DType dtype;
  Shape shape;
  std::vector<std::string> texts;  ///< Text of both sides; the other ranks have f32 [2, 3].
};

TEST_P(GatherSemanticsOfSeveral, OtherDimensionsOrDTypesAreTheSameErrorEverywhere) {
  const std::vector<Difference> differences{
      {"more dimensions", DType::f32, {2, 3, 1}, {"2 dimensions", "3 dimensions"}},
      {"fewer dimensions", DType::f32, {6}, {"2 dimensions", "1 dimensions"}},
      {"no dimensions", DType::f32, {}, {"2 dimensions", "0 dimensions"}},
      {"another dtype", DType::f64, {2, 3}, {"f32", "f64"}},
      {"another dtype of its size", DType::i32, {2, 3}, {"f32", "i32"}},
      {"both, and empty", DType::u8, {0}, {"f32", "u8"}},
      {"both, and large", DType::u8, {100, 1, 1000}, {"2 dimensions", "3 dimensions"}},
  };
  for (const Difference& d : differences)
    for (int odd = 0; odd < size(); ++odd) {
      PerRank<std::string> texts(size());
      on_ranks(world(), [&](ProcessGroup& group) {
        SCOPED_TRACE(d.name + " on rank " + std::to_string(odd));
        const bool other = group.rank() == odd;
        const Buffer mine(group, other ? d.dtype : DType::f32, other ? d.shape : Shape{2, 3});
        std::vector<std::string> parts = d.texts;
        parts.insert(parts.end(), {"gather_all_tensors", group.name()});
        texts[group.rank()] = expect_error(Errc::mismatch, parts, [&] {
                                (void)gather_all_tensors(group, mine);
                              }).what();
        expect_usable(group);
      });
      for (const std::string& text : texts.all()) EXPECT_EQ(text, texts[0]);
    }
}

}  // namespace
}  // namespace tutti::test
