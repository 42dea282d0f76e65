#include <tutti/store/store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/store/store_server.hpp>

#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "support/temporary_directory.hpp"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using test::expect_error;
using test::TemporaryDirectory;

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

Bytes bytes(std::string_view text) {
  const auto span = std::as_bytes(std::span(text));
  return {span.begin(), span.end()};
}
std::string text(const Bytes& value) {
  return {reinterpret_cast<const char*>(value.data()), value.size()};
}

/// A kind of store. Ranks that share one open it separately.
struct Kind {
  std::string name;
  std::size_t prefix = 0;  ///< Bytes of the longest key that the store itself uses.
  std::function<std::function<std::shared_ptr<Store>()>()> make;
};

std::function<std::shared_ptr<Store>()> in_memory() {
  return [store = make_memory_store()] { return store; };
}
std::function<std::shared_ptr<Store>()> in_files() {
  return [directory = std::make_shared<TemporaryDirectory>()] {
    return make_file_store(directory->path());
  };
}
std::function<std::shared_ptr<Store>()> over_tcp() {
  return [server = std::make_shared<StoreServer>(StoreServerOptions{.host = "127.0.0.1"})] {
    return make_tcp_store("127.0.0.1", server->port(), 20s);
  };
}
const std::string prefix = "group/0.1/";
std::vector<Kind> kinds() {
  const auto prefixed = [](auto base) {
    return [base] { return [open = base()] { return make_prefix_store(open(), prefix); }; };
  };
  return {{"memory", 0, in_memory},
          {"file", 0, in_files},
          {"tcp", 0, over_tcp},
          {"prefix_of_memory", prefix.size(), prefixed(in_memory)},
          {"prefix_of_file", prefix.size(), prefixed(in_files)},
          {"prefix_of_tcp", prefix.size(), prefixed(over_tcp)}};
}
std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << kind.name;
}

class AnyStore : public testing::TestWithParam<Kind> {
 protected:
  std::shared_ptr<Store> open() const { return open_(); }
  std::size_t longest_key() const { return Store::max_key_bytes - GetParam().prefix; }
  const std::function<std::shared_ptr<Store>()> open_ = GetParam().make();
  const std::shared_ptr<Store> store = open_();
};
INSTANTIATE_TEST_SUITE_P(Kinds, AnyStore, testing::ValuesIn(kinds()),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(AnyStore, GivesBackWhatWasSet) {
  store->set("key", "value");
  EXPECT_EQ(store->get_text("key", 0s), "value");
  EXPECT_EQ(store->try_get("key"), bytes("value"));
  EXPECT_EQ(open()->get_text("key", 0s), "value") << "seen by another rank";
  store->set("key", "");
  EXPECT_EQ(store->try_get("key"), Bytes{}) << "empty is a value";
  const Bytes binary{std::byte{0}, std::byte{255}, std::byte{'\n'}, std::byte{0}};
  store->set("key", binary);
  EXPECT_EQ(store->get("key", 0s), binary);
}

TEST_P(AnyStore, EraseSaysWhetherThereWasAKey) {
  store->set("key", "value");
  EXPECT_TRUE(store->erase("key"));
  EXPECT_FALSE(store->erase("key"));
  EXPECT_EQ(store->try_get("key"), std::nullopt);
  store->set("key", "again");
  EXPECT_EQ(store->get_text("key", 0s), "again");
}

TEST_P(AnyStore, GetBlocksUntilAnotherThreadSets) {
  std::atomic<bool> set = false;
  std::thread other([&] {
    std::this_thread::sleep_for(50ms);
    set = true;
    open()->set("late", "here");
  });
  const auto got = store->get_text("late", 20s);
  EXPECT_TRUE(set) << "returned before there was a value";
  EXPECT_EQ(got, "here");
  other.join();
}

TEST_P(AnyStore, GetWithoutALimitWaitsToo) {
  std::thread other([&] {
    std::this_thread::sleep_for(20ms);
    open()->add("late", 3);
  });
  EXPECT_EQ(store->get_text("late", Deadline::none()), "3");
  other.join();
}

TEST_P(AnyStore, ATimeoutNamesTheKeyAndComesInTime) {
  const auto before = Deadline::Clock::now();
  expect_error(Errc::timeout, {"the/missing/key"},
               [&] { (void)store->get("the/missing/key", 60ms); });
  const auto took = Deadline::Clock::now() - before;
  EXPECT_GE(took, 60ms);
  EXPECT_LT(took, 5s);
}

TEST_P(AnyStore, AnExpiredDeadlineStillFindsWhatIsThere) {
  store->set("key", "value");
  EXPECT_EQ(store->get_text("key", -1s), "value");
  expect_error(Errc::timeout, {"missing"}, [&] { (void)store->get("missing", -1s); });
}

TEST_P(AnyStore, AddCountsFromZeroAndKeepsDecimalText) {
  EXPECT_EQ(store->add("counter", 3), 3);
  EXPECT_EQ(store->add("counter", -10), -7);
  EXPECT_EQ(store->get_text("counter", 0s), "-7");
  EXPECT_EQ(open()->add("counter", 0), -7);
  store->set("counter", "41");
  EXPECT_EQ(store->add("counter", 1), 42);
}

TEST_P(AnyStore, AddToWhatIsNoNumberIsRefusedAndChangesNothing) {
  for (const auto* garbage :
       {"", "abc", "12x", " 12", "12 ", "1.5", "+3", "--1", "9223372036854775808"}) {
    store->set("counter", garbage);
    expect_error(Errc::invalid_argument, {"counter"}, [&] { store->add("counter", 1); });
    EXPECT_EQ(store->get_text("counter", 0s), garbage);
  }
  EXPECT_EQ(store->add("another", 1), 1) << "it has released its lock";
}

TEST_P(AnyStore, ACounterThatOverflowsIsRefusedWithBothNumbersAndChangesNothing) {
  EXPECT_EQ(store->add("up", most), most);
  expect_error(Errc::count_overflow, {"up", std::to_string(most), "+ 5"},
               [&] { store->add("up", 5); });
  EXPECT_EQ(store->add("up", 0), most);
  EXPECT_EQ(store->add("down", -most - 1), -most - 1);
  expect_error(Errc::count_overflow, {"down", std::to_string(-most - 1), "-1"},
               [&] { store->add("down", -1); });
  EXPECT_EQ(store->add("down", 0), -most - 1);
}

TEST_P(AnyStore, CompareSetChangesOnlyWhatIsExpected) {
  EXPECT_EQ(store->compare_set("key", bytes("old"), bytes("new")), Bytes{}) << "still nothing";
  EXPECT_EQ(store->try_get("key"), std::nullopt);
  EXPECT_EQ(text(store->compare_set("key", {}, bytes("first"))), "first");
  EXPECT_EQ(text(store->compare_set("key", {}, bytes("second"))), "first");
  EXPECT_EQ(text(store->compare_set("key", bytes("wrong"), bytes("second"))), "first");
  EXPECT_EQ(text(store->compare_set("key", bytes("firs"), bytes("second"))), "first");
  EXPECT_EQ(store->get_text("key", 0s), "first");
  EXPECT_EQ(text(store->compare_set("key", bytes("first"), bytes("second"))), "second");
  EXPECT_EQ(store->get_text("key", 0s), "second");
  EXPECT_EQ(store->compare_set("key", bytes("second"), {}), Bytes{});
  EXPECT_EQ(store->try_get("key"), Bytes{}) << "an empty value is not a missing one";
}

TEST_P(AnyStore, ACompareSetWakesWaiters) {
  std::thread other([&] {
    std::this_thread::sleep_for(20ms);
    open()->compare_set("late", {}, bytes("won"));
  });
  EXPECT_EQ(store->get_text("late", 20s), "won");
  other.join();
}

TEST_P(AnyStore, KeysOutsideTheLimitsAreRefusedByEveryFunction) {
  const std::string longest(longest_key(), 'k');
  store->set(longest, "value");
  EXPECT_EQ(store->get_text(longest, 0s), "value");
  EXPECT_TRUE(store->erase(longest));

  const auto refuse = [&](const std::string& key, const std::vector<std::string>& texts) {
    const auto refused = [&](const std::function<void()>& call) {
      expect_error(Errc::invalid_argument, texts, call);
    };
    refused([&] { store->set(key, "value"); });
    refused([&] { (void)store->try_get(key); });
    refused([&] { (void)store->get(key, 0s); });
    refused([&] { store->add(key, 1); });
    refused([&] { store->compare_set(key, {}, bytes("value")); });
    refused([&] { store->erase(key); });
  };
  refuse("", {"key is empty"});
  refuse(std::string(longest_key() + 1, 'k'), {"1025", "1024"});
}

TEST_P(AnyStore, ValuesOutsideTheLimitAreRefused) {
  const std::string largest(Store::max_value_bytes, 'v');
  store->set("key", largest);
  EXPECT_EQ(store->get_text("key", 10s), largest);
  const std::vector<std::string> texts{"key", std::to_string(Store::max_value_bytes + 1),
                                       std::to_string(Store::max_value_bytes)};
  expect_error(Errc::invalid_argument, texts, [&] { store->set("key", largest + 'v'); });
  expect_error(Errc::invalid_argument, texts,
               [&] { store->compare_set("key", {}, bytes(largest + 'v')); });
  EXPECT_EQ(store->get_text("key", 10s).size(), largest.size());
}

// Every pair of stores is separate: keys of one are never read or erased by another.
TEST_P(AnyStore, OddKeysAreKeysOfTheirOwn) {
  using namespace std::string_literals;
  std::vector<std::string> keys{"a",
                                "A",
                                "a/b",
                                "a//b",
                                "/a/b",
                                "a/b/",
                                "a%2fb",
                                "a%2Fb",
                                "%",
                                "%%",
                                ".",
                                "..",
                                "../a",
                                "../../",
                                "a.v",
                                "a+",
                                "a b",
                                "a\nb",
                                "a\\b",
                                "a\0b"s,
                                "\0"s,
                                "\0\0"s,
                                "-",
                                "_",
                                "*",
                                "~",
                                "$HOME",
                                ".lock",
                                ".unfinished",
                                "schlüssel",
                                "鍵",
                                "\xff\xfe",
                                "CON",
                                "a:b",
                                "\x7f",
                                "|",
                                std::string(200, 'x'),
                                std::string(201, 'x'),
                                std::string(199, 'x') + "/",
                                std::string(longest_key(), '/'),
                                std::string(longest_key(), 'x'),
                                std::string(longest_key() - 1, 'x'),
                                std::string(200, 'x') + "+/" + std::string(5, 'x')};
  for (std::size_t i = 0; i < keys.size(); ++i) store->set(keys[i], std::to_string(i));
  for (std::size_t i = 0; i < keys.size(); ++i)
    ASSERT_EQ(open()->get_text(keys[i], 0s), std::to_string(i)) << "'" << keys[i] << "'";
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ASSERT_TRUE(store->erase(keys[i])) << "'" << keys[i] << "'";
    ASSERT_EQ(store->try_get(keys[i]), std::nullopt) << "'" << keys[i] << "'";
    if (i + 1 == keys.size()) break;
    ASSERT_EQ(store->get_text(keys[i + 1], 0s), std::to_string(i + 1))
        << "'" << keys[i + 1] << "' after '" << keys[i] << "' was erased";
  }
}

// They share one object, not only one table: a waiting thread delays no other.
TEST_P(AnyStore, ThreadsOfOneStoreDoNotWaitForEachOther) {
  test::on_threads(8, [&](int rank) {
    const auto mine = "of " + std::to_string(rank);
    const auto next = "of " + std::to_string(rank + 1);
    if (rank < 7) {  // The last one starts the chain.
      EXPECT_EQ(store->get_text(next, 20s), next);
    }
    for (int i = 0; i < 20; ++i) store->add("counter", 1);
    store->set(mine, mine);
  });
  EXPECT_EQ(store->get_text("of 0", 0s), "of 0");
  EXPECT_EQ(store->add("counter", 0), 160);
}

TEST_P(AnyStore, EveryAddReturnsANumberOfItsOwn) {
  std::vector<std::atomic<int>> seen(401);
  test::on_threads(4, [&](int) {
    const auto mine = open();
    for (int i = 0; i < 100; ++i) ++seen[static_cast<std::size_t>(mine->add("ticket", 1))];
  });
  EXPECT_EQ(seen[0], 0);
  for (std::size_t i = 1; i < seen.size(); ++i) ASSERT_EQ(seen[i], 1) << "ticket " << i;
}

TEST_P(AnyStore, ExactlyOneOfEightWinsACompareSet) {
  for (int round = 0; round < 20; ++round) {
    const auto key = "leader/" + std::to_string(round);
    std::atomic<int> winners = 0;
    std::vector<std::string> seen(8);
    test::on_threads(8, [&](int rank) {
      const auto me = "rank " + std::to_string(rank);
      const auto holds = text(open()->compare_set(key, {}, bytes(me)));
      if (holds == me) ++winners;
      seen[static_cast<std::size_t>(rank)] = holds;
    });
    ASSERT_EQ(winners, 1);
    for (const auto& holds : seen) ASSERT_EQ(holds, seen[0]) << "they saw different winners";
  }
}

// A reader sees one value or the other, never a part of one.
TEST_P(AnyStore, AReaderNeverSeesHalfAValue) {
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    const auto mine = open();
    for (int i = 0; !stop; ++i)
      mine->set("key", std::string(i % 2 == 0 ? 9000 : 70, i % 2 == 0 ? 'a' : 'b'));
  });
  (void)store->get("key", 20s);
  for (int i = 0; i < 300; ++i) {
    const auto value = store->get_text("key", 20s);
    ASSERT_FALSE(value.empty());
    ASSERT_EQ(value, std::string(value[0] == 'a' ? 9000 : 70, value[0]));
  }
  stop = true;
  writer.join();
}

TEST(PrefixStore, SeesItsPartOnly) {
  const auto base = make_memory_store();
  const auto a = make_prefix_store(base, "a/");
  const auto b = make_prefix_store(base, "b/");
  a->set("key", "of a");
  EXPECT_EQ(b->try_get("key"), std::nullopt);
  EXPECT_EQ(base->get_text("a/key", 0s), "of a");
  base->set("b/key", "of b");
  EXPECT_EQ(b->get_text("key", 0s), "of b");
  EXPECT_EQ(make_prefix_store(a, "c/")->try_get("key"), std::nullopt);
  make_prefix_store(a, "c/")->set("key", "of a/c");
  EXPECT_EQ(base->get_text("a/c/key", 0s), "of a/c");
}

TEST(PrefixStore, NeedsABase) {
  expect_error(Errc::invalid_argument, {"null"}, [] { (void)make_prefix_store(nullptr, "x"); });
}

TEST(FileStore, NeedsADirectoryThatIsThere) {
  const TemporaryDirectory directory;
  const auto missing = directory.path() + "/missing";
  expect_error(Errc::invalid_argument, {missing}, [&] { (void)make_file_store(missing); });
  const auto file = directory.path() + "/file";
  make_file_store(directory.path())->set("x", "y");
  expect_error(Errc::invalid_argument, {file}, [&] { (void)make_file_store(file); });
}

TEST(FileStore, WritesNothingOutsideItsDirectory) {
  const TemporaryDirectory outer;
  const auto inside = outer.path() + "/inside";
  std::filesystem::create_directory(inside);
  const auto store = make_file_store(inside);
  for (const auto* key : {"../escaped", "..", "/tmp/escaped", "a/../../escaped"})
    store->set(key, "value");
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(outer.path())) {
    EXPECT_EQ(entry.path(), inside);
    ++entries;
  }
  EXPECT_EQ(entries, 1);
}

TEST(FileStore, ALostDirectoryIsAnErrorThatNamesIt) {
  const TemporaryDirectory directory;
  const auto inside = directory.path() + "/inside";
  std::filesystem::create_directory(inside);
  const auto store = make_file_store(inside);
  std::filesystem::remove_all(inside);
  expect_error(Errc::backend, {inside}, [&] { store->set("key", "value"); });
  expect_error(Errc::backend, {inside}, [&] { store->add("key", 1); });
}

TEST(FileStore, AFileInTheWayOfALongKeyIsAnErrorThatNamesIt) {
  const TemporaryDirectory directory;
  const std::string key(300, 'k');
  const auto way = directory.path() + "/" + key.substr(0, 200) + "+";
  std::ofstream(way) << "in the way";
  const auto store = make_file_store(directory.path());
  expect_error(Errc::backend, {way}, [&] { store->set(key, "value"); });
  store->set("short", "value");
}

TEST(FileStore, ProcessesLoseNoAdd) {
  const TemporaryDirectory directory;
  const auto ends = test::in_children(4, [&](int) {
    const auto store = make_file_store(directory.path());
    for (int i = 0; i < 200; ++i) store->add("counter", 1);
    return "added";
  });
  for (const auto& end : ends) EXPECT_EQ(end.output, "added");
  EXPECT_EQ(make_file_store(directory.path())->add("counter", 0), 800);
}

TEST(FileStore, OneProcessWinsACompareSetAndTheOthersWaitForIt) {
  const TemporaryDirectory directory;
  const auto ends = test::in_children(4, [&](int child) {
    const auto store = make_file_store(directory.path());
    const auto me = std::to_string(child);
    if (text(store->compare_set("leader", {}, bytes(me))) == me) {
      store->add("winners", 1);
      std::this_thread::sleep_for(20ms);
      store->set("hello", "from " + me);
    }
    return store->get_text("hello", 20s);
  });
  const auto leader = make_file_store(directory.path())->get_text("leader", 0s);
  for (const auto& end : ends) EXPECT_EQ(end.output, "from " + leader);
  EXPECT_EQ(make_file_store(directory.path())->add("winners", 0), 1);
}

}  // namespace
}  // namespace tutti
