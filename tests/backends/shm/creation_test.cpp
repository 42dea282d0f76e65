// Making groups over shared memory: ranks that die, give up or lack resources, and other processes
// that disturb.

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "memory/layout.hpp"
#include "shm/unix_socket.hpp"
#include "support.hpp"
#include "support/errors.hpp"
#include "support/sanitizers.hpp"
#include "values/bytes.hpp"

namespace tutti::test {
namespace {

namespace memory = backend::memory;
namespace shm = backend::shm;

/// Delays a rank after it has found the others, and before it fetches the segment.
class LateStore final : public StoreOver {
 public:
  LateStore(std::shared_ptr<Store> base, std::chrono::milliseconds by)
      : StoreOver(std::move(base)), by_(by) {}

 private:
  void seen(std::string_view key, bool) override {
    if (key.ends_with("/failed")) std::this_thread::sleep_for(std::exchange(by_, {}));
  }
  std::chrono::milliseconds by_;
};

class RecordingStore final : public StoreOver {
 public:
  using StoreOver::StoreOver;
  std::set<std::string> written() const {
    const std::lock_guard lock(mutex_);
    return written_;
  }

 private:
  void seen(std::string_view key, bool written) override {
    const std::lock_guard lock(mutex_);
    if (written) written_.emplace(key);
  }
  mutable std::mutex mutex_;
  std::set<std::string> written_;
};

// --- Ranks that die or give up ---

/// Kills rank 2 of three while the group is made. The others make a group or none of them does.
void expect_same_end(int runs) {
  for (int run = 0; run < runs; ++run) {
    const auto output = on_processes({.size = 3, .dies = 2}, [&](RankProcess& rank) {
      std::string end = "made";
      const Held before;
      try {
        auto options = options_of(rank, "short");
        options.timeout = patience() < 2 ? 1s : 3s;
        rank.barrier();
        std::thread killer;
        if (rank.last())
          killer = std::thread([&] {
            std::this_thread::sleep_for(std::chrono::microseconds(run * 397 % 4'000));
            ::raise(SIGKILL);
          });
        auto group = ProcessGroup::create(options);
        if (rank.last()) killer.join();
        const auto error = expect_error(Errc::peer_lost, {"rank 2"}, [&] {
          for (;;) group.barrier();
        });
        EXPECT_EQ(error.where().rank, 2) << error.what();
      } catch (const Error& error) {
        end = name_of(error.code());
        EXPECT_EQ(error.where().rank, 2) << error.what();
      }
      EXPECT_EQ(Held(), before);
      return end;
    });
    EXPECT_EQ(output[0], output[1]) << run;
    EXPECT_TRUE(output[0] == "made" || output[0] == "peer_lost" || output[0] == "timeout")
        << output[0];
  }
}

TEST(ShmCreation, OfAKilledRankEndsAlikeOnAllOthers) {
  expect_same_end(8);
}

TEST(SlowShmCreation, OfAKilledRankEndsAlikeOnAllOthers) {
  expect_same_end(200);
}

/// Rank 1 of three gives up after 300 ms, because rank 2 is late; rank 0 has 20 s. Then they try
/// again.
void expect_failure_of_rank_1(const std::function<void(GroupOptions&)>& be_late,
                              bool rank_2_fails) {
  on_processes({.size = 3}, [&](RankProcess& rank) {
    const Held before;
    auto options = options_of(rank, "late");
    if (rank.rank() == 1) options.timeout = 300ms;
    rank.barrier();
    if (rank.last()) be_late(options);
    if (!rank.last() || rank_2_fails) {
      const auto start = Clock::now();
      const auto error = expect_error(Errc::timeout, {"group 'late'", "missing: 2"},
                                      [&] { (void)ProcessGroup::create(options); });
      EXPECT_EQ(error.where().rank, 2) << error.what();
      EXPECT_LT(since(start), 2500 * patience());
      EXPECT_EQ(Held(), before);
    }
    options.timeout = 20s;
    auto group = ProcessGroup::create(options);
    expect_sums(group, 1000);
    return std::string();
  });
}

TEST(ShmCreation, ARankThatGivesUpEndsItForAll) {
  expect_failure_of_rank_1([](GroupOptions&) { std::this_thread::sleep_for(3s); }, false);
}

TEST(ShmCreation, ARankThatHasJoinedAndGivesUpEndsItForAll) {
  expect_failure_of_rank_1(
      [](GroupOptions& options) {
        options.store = std::make_shared<LateStore>(options.store, 1000ms);
      },
      true);
}

TEST(ShmCreation, ADeadRankIsFoundBeforeTheDeadline) {
  on_processes({.size = 3, .dies = 2}, [](RankProcess& rank) {
    auto options = options_of(rank, "dead");
    if (rank.last()) {
      options.store = std::make_shared<LateStore>(options.store, 10'000ms);
      std::thread([&] {
        std::this_thread::sleep_for(300ms);
        ::raise(SIGKILL);
      }).detach();
    }
    const auto start = Clock::now();
    const auto error = expect_error(Errc::peer_lost, {"the process of rank 2 has ended"},
                                    [&] { (void)ProcessGroup::create(options); });
    EXPECT_EQ(error.where().rank, 2) << error.what();
    EXPECT_LT(since(start), 300 + 500 * patience());
    return std::string();
  });
}

/// A store whose host stops when this rank has published itself.
class SilentStore final : public StoreOver {
 public:
  using StoreOver::StoreOver;
  std::set<std::string> written;

 private:
  void seen(std::string_view key, bool is_written) override {
    const bool silent = written.contains("world/0/locations/1");
    if (is_written)
      written.emplace(key);
    else if (silent)
      throw Error(Errc::timeout, "the store does not answer");
  }
};

// A write would wait for the store's own timeout.
TEST(ShmCreation, NothingIsWrittenToAStoreThatDoesNotAnswer) {
  const auto store = std::make_shared<SilentStore>(make_memory_store());
  GroupOptions options;
  options.backend = "shm";
  options.store = store;
  options.rank = 1;
  options.size = 2;
  options.timeout = 100ms;
  expect_error(Errc::timeout, {"does not answer"}, [&] { (void)ProcessGroup::create(options); });
  EXPECT_FALSE(store->written.contains("world/0/failed"));
  EXPECT_TRUE(store->written.contains("world/0/locations/1"));
}

// --- Other processes ---

/// The address at which rank 0 of a group listens.
std::string address_of_rank_0(Store& store, const std::string& group) {
  const auto bytes = store.get(group + "/0/shm/rank/0", Deadline::after(10s));
  internal::Reader in(bytes, Errc::backend, "rank 0");
  (void)in.u32();
  return std::string(in.text());
}

TEST(ShmCreation, ConnectionsOfUnauthenticatedPeersDoNotHoldRank0) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    auto options = options_of(rank, "besieged");
    if (rank.rank() == 0) {
      options.timeout = 500ms;
      const auto start = Clock::now();
      expect_error(Errc::timeout, {"missing: 1"}, [&] { (void)ProcessGroup::create(options); });
      EXPECT_LT(since(start), 500 + 700 * patience());
    } else {
      const auto intruder = ::fork();
      if (intruder == 0) {
        const auto address = address_of_rank_0(*options.store, options.name);
        for (const auto start = Clock::now(); since(start) < 3000;)
          if (!shm::connect_to(address)) break;  // Rank 0 has given up.
        ::_exit(0);
      }
      options.store = std::make_shared<LateStore>(options.store, 1500ms);
      expect_error(Errc::timeout, {"rank 0 could not make", "missing: 1"},
                   [&] { (void)ProcessGroup::create(options); });
      ::waitpid(intruder, nullptr, 0);
    }
    return std::string();
  });
}

TEST(ShmCreation, NoPeerGetsTheMemoryWithoutTheTextFromTheStore) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    auto options = options_of(rank, "asked");
    std::jthread intruder;
    if (rank.rank() == 1) {
      intruder = std::jthread([store = options.store, name = options.name] {
        const auto socket = shm::connect_to(address_of_rank_0(*store, name));
        ASSERT_TRUE(socket && shm::send_proof(*socket, std::string(32, '0')));
        pollfd event{socket->get(), POLLIN, 0};
        EXPECT_EQ(::poll(&event, 1, 10'000), 1);
        EXPECT_FALSE(shm::receive_file(*socket).is_open());
      });
      options.store = std::make_shared<LateStore>(options.store, 500ms);
    }
    ProcessGroup::create(options).barrier();
    return std::string();
  });
}

// --- Resources ---

/// Leaves this process `count` descriptors, until the end of this object.
class FewDescriptors {
 public:
  explicit FewDescriptors(int count) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = 128;
    ::setrlimit(RLIMIT_NOFILE, &few);
    for (int number = ::dup(0); number >= 0; number = ::dup(0)) used_.push_back(number);
    for (; count > 0; --count) release();
  }
  ~FewDescriptors() {
    while (!used_.empty()) release();
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  void release() {
    ::close(used_.back());
    used_.pop_back();
  }
  rlimit before_{};
  std::vector<int> used_;
};

TEST(ShmCreation, ALackOfDescriptorsIsAnErrorOnAllRanks) {
  if (address_sanitizer) GTEST_SKIP() << "UBSan's checks of types need descriptors";
  on_processes({.size = 3}, [](RankProcess& rank) {
    rank.use_tcp();
    for (const int lacking : {0, 1}) {
      int failed = 0;
      for (int count = 0;; ++count) {
        rank.barrier();
        const auto options = options_of(rank, fmt::format("few{}.{}", lacking, count));
        // A rank that came after the error would wait for a second try of the others.
        for (int r = 0; r < rank.size(); ++r)
          if (rank.rank() == lacking && r != lacking)
            (void)options.store->get(fmt::format("{}/0/locations/{}", options.name, r),
                                     Deadline::after(5s));
        const Held before;
        const auto start = Clock::now();
        std::optional<FewDescriptors> few;
        if (rank.rank() == lacking) few.emplace(count);
        std::optional<Error> error;
        try {
          (void)ProcessGroup::create(options);
        } catch (const Error& thrown) {
          error = thrown;
        }
        few.reset();
        EXPECT_LT(since(start), 3000 * patience());
        EXPECT_EQ(Held(), before);
        rank.barrier();  // Connections to the store are descriptors of rank 0.
        if (!error) break;
        ++failed;
        EXPECT_EQ(error->code(), Errc::resource_exhausted) << count << ": " << error->what();
        EXPECT_NE(std::string(error->what()).find("Too many open files"), std::string::npos)
            << error->what();
        if (rank.rank() != lacking) {
          EXPECT_EQ(error->where().rank, lacking) << error->what();
        }
      }
      EXPECT_GE(failed, 3);
    }
    return std::string();
  });
}

/// Moves this process into a mount namespace of its own, in which these folders are empty and have
/// 4 MiB each. False if that is not permitted.
bool limit_folders(const std::vector<std::string>& folders) {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return false;
  for (const auto& folder : folders)
    if (::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=4m") != 0) return false;
  return true;
}

/// True if `mine` is true on all ranks.
bool on_all(RankProcess& rank, bool mine) {
  rank.store().set(fmt::format("permitted/{}", rank.rank()), mine ? "1" : "");
  for (int r = 0; r < rank.size(); ++r)
    if (rank.store().get_text(fmt::format("permitted/{}", r), Deadline::after(5s)).empty())
      return false;
  return true;
}

/// Runs four ranks in such a namespace, over a store that needs no files.
void with_small_folders(bool memfd, const std::vector<std::string>& folders,
                        const std::function<void(RankProcess&)>& body) {
  const auto output = on_processes({.size = 4}, [&](RankProcess& rank) -> std::string {
    rank.use_tcp();
    ::unsetenv("TMPDIR");
    const bool permitted = limit_folders(folders) && (memfd || forbid(SYS_memfd_create));
    if (!on_all(rank, permitted)) return "not permitted";
    body(rank);
    return {};
  });
  if (output[0] == "not permitted") GTEST_SKIP() << "mount namespaces are not permitted here";
}

std::size_t used_bytes(const char* folder) {
  struct statvfs now {};
  EXPECT_EQ(::statvfs(folder, &now), 0);
  return (now.f_blocks - now.f_bfree) * now.f_bsize;
}

TEST(ShmCreation, WorksWithASmallFolderForSharedMemory) {
  with_small_folders(true, {"/dev/shm"}, [](RankProcess& rank) {
    auto group = ProcessGroup::create(options_of(rank, "small"));
    EXPECT_EQ(mappings_of("memfd:tutti"), 1U);
    for (const std::size_t count : {1U, 1000U, 1'000'000U}) expect_sums(group, count);
  });
}

TEST(ShmCreation, WorksWithoutMemfd) {
  with_small_folders(false, {"/dev/shm"}, [](RankProcess& rank) {
    {
      auto group = ProcessGroup::create(options_of(rank, "files"));  // 8 MiB, in /tmp.
      EXPECT_EQ(mappings_of("memfd:tutti"), 0U);
      for (const std::size_t count : {1U, 1000U, 1'000'000U}) expect_sums(group, count);
      auto pair = group.split(rank.rank() / 2);  // 3 MiB, in /dev/shm.
      ASSERT_TRUE(pair.has_value());
      expect_sums(*pair, 100'000);
    }
    rank.barrier();
    EXPECT_EQ(used_bytes("/dev/shm"), 0U);
    EXPECT_TRUE(std::filesystem::is_empty("/dev/shm"));
    rank.barrier();
  });
}

TEST(ShmCreation, WithoutMemoryIsAnErrorWithTheSize) {
  with_small_folders(false, {"/dev/shm", "/tmp"}, [](RankProcess& rank) {
    const Held before;
    const auto bytes = memory::Layout(4).bytes();
    ASSERT_GT(bytes, std::size_t{4} << 20);
    for (int i = 0; i < 3; ++i)
      expect_error(Errc::resource_exhausted,
                   {std::to_string(bytes), "memfd", "/dev/shm", "/tmp", "bytes left"},
                   [&] { (void)ProcessGroup::create(options_of(rank, "none")); });
    EXPECT_EQ(Held(), before);
    for (const auto* folder : {"/dev/shm", "/tmp"}) EXPECT_EQ(used_bytes(folder), 0U) << folder;
    auto options = rank.options("auto");
    options.backend = "auto";
    const auto other = ProcessGroup::create(options);
    EXPECT_NE(other.backend(), "shm");
    EXPECT_NE(other.backend_reason().find("memfd: Operation not permitted"), std::string::npos);
    rank.barrier();  // Connections to the store are descriptors of rank 0.
  });
}

/// A rank is killed while the memory of its group is a file.
TEST(ShmCreation, NoFileIsLeftOfAKilledRank) {
  const auto output = on_processes({.size = 2, .dies = 1}, [](RankProcess& rank) -> std::string {
    if (!on_all(rank, limit_folders({"/mnt"}) && forbid(SYS_memfd_create))) return "not permitted";
    ::setenv("TMPDIR", "/mnt", 1);
    {
      auto group = ProcessGroup::create(options_of(rank, "files"));
      group.barrier();
      if (rank.last()) ::raise(SIGKILL);
      EXPECT_THROW(group.barrier(), Error);
      EXPECT_TRUE(std::filesystem::is_empty("/mnt"));
    }
    EXPECT_EQ(used_bytes("/mnt"), 0U);
    return {};
  });
  if (output[0] == "not permitted") GTEST_SKIP() << "mount namespaces are not permitted here";
}

// --- Many groups ---

void make_groups(int count) {
  on_processes({.size = 2, .limit = 1200s}, [count](RankProcess& rank) {
    rank.use_tcp();
    const auto cycle = [&](int i) {
      auto group = ProcessGroup::create(options_of(rank, fmt::format("cycle{}", i)));
      std::vector<std::int32_t> one{1};
      group.all_reduce(one);
      EXPECT_EQ(one[0], 2);
      if (i % 50 != 0) return;
      group.barrier_async().wait();
      std::vector<float> data(10'000);
      std::vector<float> other(10'000);
      group.sendrecv(data, 1 - rank.rank(), other, 1 - rank.rank());
      auto part = group.split(0);
      expect_sums(*part, 10'000);
    };
    for (int i = 0; i < 60; ++i) cycle(i);
    rank.barrier();
    const Held before;
    const auto resident = holdings().resident_kib;
    const auto start = Clock::now();
    for (int i = 60; i < count; ++i) cycle(i);
    const auto took = since(start);
    const Held after;
    // Less if the store, which rank 0 hosts, closed a connection that had ended earlier.
    EXPECT_LE(after.descriptors, before.descriptors);
    EXPECT_EQ(after.threads, before.threads);
    EXPECT_EQ(after.mappings, before.mappings);
    const auto grown = static_cast<std::ptrdiff_t>(holdings().resident_kib) -
                       static_cast<std::ptrdiff_t>(resident);
    // Rank 0 has the store, with the keys of all groups.
    if (!reduced() && rank.rank() == 1) {
      EXPECT_LT(grown, 1024);
    }
    std::cout << fmt::format("rank {}: {} groups, {:.2f} ms each; memory grew by {} KiB\n",
                             rank.rank(), count, took / (count - 60), grown);
    return std::string();
  });
}

TEST(ShmCreation, GroupsReleaseEverything) {
  make_groups(reduced() ? 100 : 300);
}

TEST(SlowShmCreation, GroupsReleaseEverything) {
  make_groups(10'000);
}

TEST(ShmCreation, WritesTheKeysOfItsRanks) {
  const auto store = std::make_shared<RecordingStore>(make_memory_store());
  on_threads(2, [&](int rank) {
    for (int i = 0; i < 2; ++i) {
      GroupOptions options;
      options.backend = "shm";
      options.store = store;
      options.rank = rank;
      options.size = 2;
      auto group = ProcessGroup::create(options);
      expect_sums(group, 10);
    }
  });
  std::set<std::string> keys{"world/groups"};
  for (const std::string group : {"world/0/", "world/1/"})
    for (const auto* key : {"made_with", "ended", "keys/0", "keys/1", "member/0", "member/1",
                            "locations/0", "locations/1", "locations/2", "locations/count",
                            "shm/rank/0", "shm/rank/1", "shm/rank/2", "shm/rank/count"})
      keys.insert(group + key);
  EXPECT_EQ(store->written(), keys);
}

TEST(ShmCreation, AWrongVariableOnOneRankEndsItOnAll) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    if (rank.last()) ::setenv("TUTTI_SHM_READS", "often", 1);
    expect_error(Errc::invalid_argument, {"TUTTI_SHM_READS"},
                 [&] { (void)ProcessGroup::create(options_of(rank, "wrong")); });
    return std::string();
  });
}

}  // namespace
}  // namespace tutti::test
