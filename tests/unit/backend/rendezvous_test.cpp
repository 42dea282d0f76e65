#include "backend/rendezvous.hpp"

#include <array>
#include <chrono>

#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/ranks.hpp"

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;
using test::expect_error;

constexpr int size = 4;

BackendInit init_of(const std::shared_ptr<Store>& store, int rank,
                    std::chrono::nanoseconds timeout = 10s) {
  return {.store = store, .rank = rank, .size = size, .name = "world", .timeout = timeout};
}

TEST(Rendezvous, AwaitKeyLooksUntilTheKeyIsThere) {
  const auto store = make_memory_store();
  int looks = 0;
  const auto look = [&] {
    if (++looks == 2) store->set("key", "value");
  };
  const auto bytes = await_key(*store, "key", Deadline::after(20s), 20ms, look);
  EXPECT_EQ(bytes.size(), 5U);
  EXPECT_EQ(looks, 2);
  expect_error(Errc::timeout, {"other"},
               [&] { (void)await_key(*store, "other", Deadline::after(30ms), 20ms, [] {}); });
  expect_error(Errc::aborted, {"stop"}, [&] {
    (void)await_key(*store, "other", Deadline::none(), 20ms,
                    [] { throw Error(Errc::aborted, "stop"); });
  });
}

TEST(Rendezvous, EveryRankGetsTheValuesOfAll) {
  const auto store = make_memory_store();
  test::on_threads(size, [&](int rank) {
    Rendezvous rendezvous(init_of(store, rank));
    EXPECT_EQ(rendezvous.exchange("number", std::to_string(rank)),
              (std::vector<std::string>{"0", "1", "2", "3"}));
    EXPECT_EQ(rendezvous.exchange("other", "x"), std::vector<std::string>(size, "x"));
  });
}

TEST(Rendezvous, NamesTheRanksThatHaveNotJoined) {
  Rendezvous rendezvous(init_of(make_memory_store(), 1, 50ms));
  try {
    (void)rendezvous.exchange("number", "1");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::timeout);
    EXPECT_NE(error.message().find("group 'world': 1 of 4 ranks joined before the deadline; "
                                   "missing: 0 2 3"),
              std::string::npos)
        << error.what();
    EXPECT_EQ(error.where().missing, (std::vector{0, 2, 3}));
    // The error of a deadline without a missing rank does not name the rank that waited.
    (void)rendezvous.give_up(Error(Errc::timeout, "no answer"));
    EXPECT_EQ(expect_error(Errc::timeout, {"no answer"}, [&] { rendezvous.check(); }).where().rank,
              -1);
  }
}

TEST(Rendezvous, ARankThatGivesUpEndsItOnAllRanksWithItsError) {
  const auto store = make_memory_store();
  const auto begin = std::chrono::steady_clock::now();
  test::on_threads(size, [&](int rank) {
    Rendezvous rendezvous(init_of(store, rank, 60s));
    if (rank == 2) {
      const Error own(Errc::unsupported, "no such interface");
      EXPECT_STREQ(rendezvous.give_up(own).what(), own.what());
      return;
    }
    const std::vector<std::string> text{"rank 2 could not make group 'world': no such interface"};
    expect_error(Errc::unsupported, text, [&] { (void)rendezvous.exchange("number", "1"); });
    expect_error(Errc::unsupported, text, [&] { rendezvous.check(); });
    const Error later = rendezvous.give_up(Error(Errc::backend, "later"));
    EXPECT_EQ(later.message(), text.front());
    EXPECT_EQ(later.where().rank, 2);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

TEST(NumberHosts, NumbersHostsByTheirFirstRank) {
  const std::vector<std::string> hosts{"b", "c", "b", "a", "c"};
  EXPECT_EQ(number_hosts(hosts), (std::vector<int>{0, 1, 0, 2, 1}));
}

}  // namespace
}  // namespace tutti::internal
