#include "backend/value_exchange.hpp"

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/rendezvous.hpp"
#include "store/checks.hpp"
#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/store_over.hpp"

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;
using test::expect_error;

/// Counts the requests of one rank for keys that begin with "number/".
class CountingStore final : public test::StoreOver {
 public:
  using StoreOver::StoreOver;
  int requests() const { return requests_; }

 protected:
  void seen(std::string_view key, bool) override {
    requests_ += key.starts_with("number/") ? 1 : 0;
  }

 private:
  int requests_ = 0;
};

BackendInit init_of(const std::shared_ptr<Store>& store, int rank, int size,
                    std::chrono::nanoseconds timeout) {
  return {.store = store, .rank = rank, .size = size, .name = "world", .timeout = timeout};
}

std::vector<std::string> texts_of(const std::vector<Bytes>& values) {
  std::vector<std::string> texts;
  for (const auto& value : values) texts.push_back(to_text(value));
  return texts;
}

TEST(ValueExchange, OnlyTheLastRankMakesMoreRequestsWithMoreRanks) {
  for (const int size : {4, 32}) {
    const auto store = make_memory_store();
    for (int rank = 0; rank < size; ++rank) {
      CountingStore counting(store);
      ValueExchange exchange(counting, "number", rank, size);
      const bool is_last = exchange.publish(to_bytes(std::to_string(rank))).has_value();
      EXPECT_EQ(is_last, rank == size - 1);
      EXPECT_EQ(counting.requests(), is_last ? size + 3 : 2);  // And the wait for all_key().
    }
  }
}

TEST(ValueExchange, RanksThatComeAtTheSameTimeGetTheValuesOfAll) {
  const auto store = make_memory_store();
  constexpr int size = 32;
  test::on_threads(size, [&](int rank) {
    Rendezvous rendezvous(init_of(store, rank, size, 60s));
    const auto texts = rendezvous.exchange("number", std::to_string(rank));
    for (int r = 0; r < size; ++r)
      EXPECT_EQ(texts.at(static_cast<std::size_t>(r)), std::to_string(r));
  });
}

TEST(ValueExchange, ARefusalEndsItOnAllRanks) {
  const auto store = make_memory_store();
  ValueExchange zero(*store, "split/0", 0, 3);
  EXPECT_FALSE(zero.publish(to_bytes("0")));
  ValueExchange(*store, "split/0", 2, 3).refuse("refused split: no");
  ValueExchange(*store, "split/0", 1, 3).refuse("is not the first");
  const auto all = store->get(zero.all_key(), Deadline::after(10s));
  EXPECT_EQ(
      expect_error(Errc::mismatch, {"rank 2 refused split: no"}, [&] { (void)zero.values(all); })
          .where()
          .rank,
      2);
}

TEST(ValueExchange, ARankThatWasLateMayPublishAgain) {
  const auto store = make_memory_store();
  ValueExchange zero(*store, "split/0", 0, 2);
  ValueExchange one(*store, "split/0", 1, 2);
  EXPECT_FALSE(zero.publish(to_bytes("a")));
  EXPECT_EQ(zero.missing(), std::vector{1});
  EXPECT_TRUE(zero.withdraw());
  EXPECT_FALSE(zero.publish(to_bytes("b")));
  EXPECT_FALSE(store->try_get(zero.all_key()));
  const auto all = one.publish(to_bytes("c"));
  ASSERT_TRUE(all);
  EXPECT_EQ(texts_of(*all), (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(zero.values(store->get(zero.all_key(), Deadline::after(10s))), *all);
}

TEST(ValueExchange, ARankStaysInItIfAllHavePublished) {
  const auto store = make_memory_store();
  ValueExchange zero(*store, "split/0", 0, 2);
  ValueExchange one(*store, "split/0", 1, 2);
  EXPECT_FALSE(zero.publish(to_bytes("a")));
  const auto all = one.publish(to_bytes("b"));
  for (int attempt = 0; attempt < 2; ++attempt) EXPECT_FALSE(zero.withdraw());
  EXPECT_EQ(zero.read_all(), all);
}

/// A store that is slow: a request with a deadline gets no answer before it.
class SlowStore final : public test::StoreOver {
 public:
  using StoreOver::StoreOver;
  Bytes get(std::string_view key, Deadline) override {
    throw Error(Errc::timeout, "no answer for " + std::string(key));
  }
};

TEST(ValueExchange, TheLastRankWaitsForTheAnswersOfASlowStore) {
  const auto store = make_memory_store();
  ValueExchange zero(*store, "split/0", 0, 2);
  EXPECT_FALSE(zero.publish(to_bytes("a")));
  SlowStore slow(store);
  EXPECT_TRUE(ValueExchange(slow, "split/0", 1, 2).publish(to_bytes("b")));
  EXPECT_TRUE(store->try_get(zero.all_key()));
}

TEST(ValueExchange, EndsAlsoIfARankHasCountedItselfTwice) {
  const auto store = make_memory_store();
  ValueExchange zero(*store, "split/0", 0, 2);
  ValueExchange one(*store, "split/0", 1, 2);
  for (int attempt = 0; attempt < 2; ++attempt) EXPECT_FALSE(zero.publish(to_bytes("a")));
  EXPECT_TRUE(one.publish(to_bytes("b")));
  EXPECT_TRUE(store->try_get(zero.all_key()));
}

TEST(ValueExchange, ValuesThatAreTooLongForOneKeyAreReadOneByOne) {
  const auto store = make_memory_store();
  const Bytes large(Store::max_value_bytes, std::byte{7});
  ValueExchange zero(*store, "x", 0, 2);
  ValueExchange one(*store, "x", 1, 2);
  EXPECT_FALSE(zero.publish(large));
  const auto all = one.publish(to_bytes("small"));
  ASSERT_TRUE(all);
  EXPECT_EQ(all->at(0), large);
  const auto held = store->get(zero.all_key(), Deadline::after(10s));
  EXPECT_LT(held.size(), 100U);
  EXPECT_EQ(zero.values(held), *all);
}

TEST(ValueExchange, GetsTheValuesAtTheDeadlineIfTheLastRankDiedBeforeItWroteThoseOfAll) {
  const auto store = make_memory_store();
  store->set("number/1", "one");
  (void)store->add("number/count", 1);
  store->set("number/2", "two");  // It has died here.
  Rendezvous rendezvous(init_of(store, 0, 3, 100ms));
  EXPECT_EQ(rendezvous.exchange("number", "zero"),
            (std::vector<std::string>{"zero", "one", "two"}));
}

}  // namespace
}  // namespace tutti::internal
