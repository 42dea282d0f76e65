// The keys of a group that has lost a rank.

#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "group/group_keys.hpp"
#include "support/store_over.hpp"

namespace tutti::test {
namespace {

class CountingStore final : public StoreOver {
 public:
  CountingStore() : StoreOver(make_memory_store()) {}
  bool erase(std::string_view key) override {
    ++erased;
    return StoreOver::erase(key);
  }
  int erased = 0;
};

TEST(GroupKeys, OfALostRankAreErasedOnce) {
  constexpr int size = 100;
  constexpr int lost = 7;
  constexpr int keys_of_rank = 5;
  const auto store = std::make_shared<CountingStore>();
  const auto key = [](int i, int rank) { return fmt::format("part/{}/of/{}", i, rank); };
  {
    std::vector<std::unique_ptr<internal::GroupKeys>> ranks;
    for (int r = 0; r < size; ++r) {
      auto& rank =
          *ranks.emplace_back(std::make_unique<internal::GroupKeys>(store, "group/", r, size));
      rank.set_made();
      for (int i = 0; i < keys_of_rank; ++i) rank.set(key(i, r), "");
      if (r != lost) rank.lose(lost);
    }
    // Its process has died, so it does not leave.
    const auto dead = std::move(ranks[lost]);
    ranks.clear();
    EXPECT_LE(store->erased, (2 * keys_of_rank + 2) * size);
    for (int r = 0; r < size; ++r)
      for (int i = 0; i < keys_of_rank; ++i)
        EXPECT_FALSE(store->try_get("group/" + key(i, r))) << key(i, r);
  }  // `dead` finds no key of its own, so it writes none.
  EXPECT_FALSE(store->try_get("group/ended"));
}

}  // namespace
}  // namespace tutti::test
