#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <tutti/gather.hpp>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"

// gather_all_tensors() of lists.

namespace tutti::test {
namespace {

class GatherLists : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int size() const { return GetParam().size; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherLists, testing::ValuesIn(worlds()), CaseName());

class GatherListsOfSeveral : public GatherLists {};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherListsOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

class GatherListsRefused : public GatherLists {};
INSTANTIATE_TEST_SUITE_P(Worlds, GatherListsRefused, testing::ValuesIn(worlds_that_refuse()),
                         CaseName());

/// The arrays of a rank: dtype and shape of each.
using List = std::vector<std::pair<DType, Shape>>;

struct Case {
  std::string name;
  std::function<List(int rank)> list;
  unsigned rounds = 1;  ///< Where small arrays are inlined.
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"rank r has r arrays",
       [](int r) {
         return List(index(r), {DType::f32, Shape{r + 1, 2}});
       }},
      {"no dimension and no dtype is shared",
       [](int r) -> List {
         if (r == 1) return {{DType::u8, {7}}, {DType::f64, {}}, {DType::i64, {1, 2, 1, 3}}};
         return {{DType::boolean, {2, 3}}, {DType::f16, {0, 5}}};
       }},
      {"the last rank alone has arrays",
       [](int r) {
         return r == 3 ? List{{DType::i32, {5}}} : List{};
       }},
      {"no rank has an array", [](int) { return List{}; }},
      {"no array has an element",
       [](int r) {
         return List(index(r), {DType::f32, Shape{r, 0}});
       }},
      {"more arrays than one message of metadata describes",
       [](int r) {
         return List(index(33 + r), {DType::i32, Shape{1, r}});
       }},
      {"rank 0 has a large list, the others small ones",
       [](int r) {
         return List(2, {DType::u8, Shape{r == 0 ? 40'001 : 3}});
       },
       2},
      {"all are large, with odd sizes before elements of 8 bytes",
       [](int r) {
         return List{{DType::u8, {70'001 + r}}, {DType::f64, {3, r}}, {DType::i16, {1}}};
       },
       2},
      {"the shapes alone are large",
       [](int r) {
         List list(1000, {DType::u8, Shape{0, 1, 1, 1, 1, 1, 1, r}});
         list.emplace_back(DType::i32, Shape{5});
         return list;
       },
       3},
  };
  return all;
}

TEST_P(GatherLists, EveryRankGetsTheListsOfAll) {
  for (const auto& c : cases()) {
    std::vector<std::vector<Array>> lists;
    for (int r = 0; r < size(); ++r) {
      auto& list = lists.emplace_back();
      for (const auto& [dtype, shape] : c.list(r))
        list.push_back(
            make_input(dtype, shape, r, size(), Fill::bits, ReduceOp::Kind::sum, list.size()));
    }
    on_ranks(world(), [&](ProcessGroup& group) {
      SCOPED_TRACE(c.name);
      std::vector<Buffer> mine;
      for (const auto& array : lists[index(group.rank())]) mine.emplace_back(group, array);
      const std::vector<ConstTensorView> views(mine.begin(), mine.end());
      const auto before = calls_of(group);
      const auto all = gather_all_tensors(group, views);
      if (inlines(group)) {
        EXPECT_EQ(calls_of(group), before + c.rounds);
      }
      ASSERT_EQ(all.size(), lists.size());
      for (std::size_t r = 0; r < all.size(); ++r) {
        ASSERT_EQ(all[r].size(), lists[r].size()) << "of rank " << r;
        for (std::size_t i = 0; i < all[r].size(); ++i)
          EXPECT_TRUE(same_bits(content_of(group, all[r][i]), lists[r][i]))
              << "array " << i << " of rank " << r;
      }
    });
  }
}

TEST_P(GatherListsRefused, AnInvalidArrayIsNamedOnEveryRank) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer buffer(group, DType::f32, {2});
    std::vector<ConstTensorView> mine(2, buffer);
    const bool last = group.rank() == group.size() - 1;
    if (last) mine[1].data = nullptr;
    expect_error(last ? Errc::invalid_argument : Errc::mismatch,
                 {"gather_all_tensors", "locals[1]", "null"},
                 [&] { (void)gather_all_tensors(group, mine); });
    expect_usable(group);
  });
}

TEST_P(GatherListsOfSeveral, AListMeetsNoSingleArray) {
  on_ranks(world(), [](ProcessGroup& group) {
    const Buffer buffer(group, DType::u8, {2});
    const std::vector<ConstTensorView> list(1, buffer);
    expect_error(Errc::mismatch, {"u8 with 1 dimensions", "a list of arrays"}, [&] {
      if (group.rank() == 0)
        (void)gather_all_tensors(group, buffer);
      else
        (void)gather_all_tensors(group, list);
    });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
