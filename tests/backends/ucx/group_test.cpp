// Tests of ucx alone. Ranks are processes.

#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tutti/backend/backend_table.hpp>

#include "../gloo/rank_processes.hpp"
#include "backend/rank_location.hpp"
#include "store/checks.hpp"
#include "support/errors.hpp"
#include "support/sanitizers.hpp"
#include "support/scoped_variables.hpp"
#include "support/worlds.hpp"

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t MiB = std::size_t{1} << 20;

GroupOptions options_of(RankProcess& rank, const std::string& backend,
                        const std::string& name = "ucx") {
  auto options = rank.options(name);
  options.backend = backend;
  return options;
}

void expect_usable(ProcessGroup& group) {
  std::vector<float> data(1000, 1.0F);
  group.all_reduce(data);
  EXPECT_EQ(data, std::vector<float>(1000, static_cast<float>(group.size())));
}

/// Ranks send large arrays in a ring until rank 1 is killed. The survivors once noticed it only at
/// the deadline of 20 s.
void kill_a_rank_in_a_ring(std::size_t bytes, std::chrono::milliseconds after) {
  on_processes({.size = 4, .dies = 1}, [&](RankProcess& rank) {
    auto options = options_of(rank, "ucx:shm");
    options.logger = [](LogLevel, std::string_view) {};
    auto group = ProcessGroup::create(options);
    const std::vector<std::uint8_t> data(bytes, 1);
    std::vector<std::uint8_t> from(bytes);
    group.barrier();
    std::thread killer;
    if (rank.rank() == 1)
      killer = std::thread([&] {
        std::this_thread::sleep_for(after);
        ::raise(SIGKILL);
      });
    const auto start = Clock::now();
    expect_error({Errc::peer_lost, Errc::aborted}, {"rank 1"}, [&] {
      for (;;) group.sendrecv(data, (rank.rank() + 1) % 4, from, (rank.rank() + 3) % 4);
    });
    EXPECT_LT(Clock::now() - start, after + 3s * patience());
    return std::string();
  });
}

TEST(Ucx, CarriesEverySizeOfMessage) {
  on_processes({.size = 3}, [&](RankProcess& rank) {
    auto options = options_of(rank, "ucx:shm");
    options.logger = [](LogLevel level, std::string_view text) {
      // UCX reports options of its configuration that no transport has.
      if (level <= LogLevel::warning) ADD_FAILURE() << text;
    };
    auto group = ProcessGroup::create(options);
    const auto used = group.transport();
    EXPECT_NE(used.find("/memory"), std::string::npos) << used;
    for (const std::size_t count : {1UL, 100UL, 3000UL, 70'000UL, 1'000'003UL}) {
      std::vector<std::int64_t> data(count);
      std::iota(data.begin(), data.end(), group.rank());
      group.all_reduce(data);
      for (std::size_t i = 0; i < count; ++i)
        if (data[i] != static_cast<std::int64_t>(3 * i + 3)) {
          ADD_FAILURE() << "element " << i << " of " << count << " is " << data[i];
          break;
        }
      const int next = (group.rank() + 1) % 3;
      const int before = (group.rank() + 2) % 3;
      std::vector<std::int64_t> from(count);
      auto sent = group.send_async(data, next);
      group.recv(from, before);
      sent.wait();
      EXPECT_EQ(from, data);
    }
    return std::string();
  });
}

TEST(Ucx, ReportsAPeerThatDiesDuringLargeMessages) {
  for (const auto after : {37ms, 91ms, 140ms}) kill_a_rank_in_a_ring(4 * MiB, after);
}

TEST(Ucx, HandlesNoSignals) {
  if (address_sanitizer) GTEST_SKIP() << "AddressSanitizer handles signals";
  on_processes({.size = 2}, [](RankProcess& rank) {
    auto group = ProcessGroup::create(options_of(rank, "ucx:shm"));
    for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGPIPE}) {
      struct sigaction action {};
      ::sigaction(signal, nullptr, &action);
      EXPECT_EQ(action.sa_handler, SIG_DFL) << signal;
    }
    expect_usable(group);
    return std::string();
  });
}

void expect_no_transport(const std::string& of_rank_0, const std::string& of_rank_1) {
  on_processes({.size = 2}, [&](RankProcess& rank) {
    const auto begin = Clock::now();
    expect_error(Errc::unsupported, {"no transport", "use tcp between hosts"}, [&] {
      ProcessGroup::create(options_of(rank, rank.rank() == 0 ? of_rank_0 : of_rank_1));
    });
    EXPECT_LT(Clock::now() - begin, 10s);
    return std::string();
  });
}

TEST(Ucx, AnUnknownTransportIsAnErrorOfAllRanks) {
  expect_no_transport("ucx:nothing", "ucx:shm");
}

TEST(Ucx, WithoutAListHasNeitherTcpNorSharedMemory) {
  const auto entry = std::ranges::find(backends(), "ucx", &BackendEntry::name);
  if (entry->is_beyond_tcp()) GTEST_SKIP() << "UCX has another network here";
  for (const char* list : {"", "all", "^ib"}) {
    const ScopedVariables variables{{"UCX_TLS", list}};
    expect_no_transport("ucx", "ucx");
  }
}

TEST(Ucx, ListsWithTcpAreRefused) {
  on_processes({.size = 1}, [](RankProcess& rank) {
    const auto refuse = [&](const std::string& backend) {
      expect_error(Errc::unsupported, {"include TCP", "use the backend tcp"},
                   [&] { ProcessGroup::create(options_of(rank, backend)); });
    };
    refuse("ucx:tcp");
    refuse("ucx:rc,tcp");
    const ScopedVariables variables{{"UCX_TLS", "rc,tcp"}};
    refuse("ucx");
    return std::string();
  });
}

TEST(Ucx, ChecksAddressesInTheStore) {
  on_processes({.size = 1}, [](RankProcess& rank) {
    const auto location = internal::to_text(
        internal::encode(internal::own_location(*rank.options("location").store, 1)));
    const auto refuse = [&](const std::string& name, const std::string& first,
                            const std::string& bytes, const char* what) {
      auto options = options_of(rank, "ucx:shm", name);
      options.size = 2;
      options.timeout = 5s;
      const std::pair<const char*, std::string> values[] = {{"locations", first},
                                                            {"ucx/address", bytes}};
      for (const auto& [key, value] : values) {
        options.store->set(fmt::format("{}/0/{}/1", options.name, key), value);
        (void)options.store->add(fmt::format("{}/0/{}/count", options.name, key), 1);
      }
      expect_error(Errc::backend, {what}, [&] { ProcessGroup::create(options); });
    };
    for (const std::string bytes : {"", "garbage", "\3\0\0\0abc\4\0\0\0abcd12345678"}) {
      refuse(fmt::format("of_{}_bytes", bytes.size()), location, bytes, "address of rank 1");
      refuse(fmt::format("location_of_{}_bytes", bytes.size()), bytes, "",
             "the location of rank 1");
    }
    return std::string();
  });
}

TEST(Ucx, NamesTheRanksThatDoNotJoin) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    auto options = options_of(rank, "ucx:shm");
    options.size = 4;
    options.timeout = 1s;
    expect_error(Errc::timeout, {"2 of 4 ranks joined", "missing: 2 3"},
                 [&] { ProcessGroup::create(options); });
    return std::string();
  });
}

// Messages of this size wait for the receiver, so they have to be withdrawn.
TEST(Ucx, LargeRefusedCallsLeaveTheGroupUsable) {
  on_processes({.size = 3, .limit = 120s}, [](RankProcess& rank) {
    auto group = ProcessGroup::create(options_of(rank, "ucx:shm"));
    for (int run = 0; run < 3; ++run) {
      std::vector<float> data(4 * MiB / sizeof(float), 1.0F);
      if (rank.rank() == run) {
        TensorView null(data);
        null.data = nullptr;
        expect_error(Errc::invalid_argument, {"null"}, [&] { group.all_reduce(null); });
      } else {
        expect_error(Errc::mismatch, {fmt::format("rank {} refused", run)},
                     [&] { group.all_reduce(data); });
      }
      expect_usable(group);
    }
    return std::string();
  });
}

/// The root's sends end before their receivers have posted anything, so it learns of the refusal
/// in its next call.
TEST(Ucx, ARefusedCallThatARankHasLeftWithoutAnErrorBreaksTheGroup) {
  on_processes({.size = 4}, [](RankProcess& rank) {
    auto group = ProcessGroup::create(options_of(rank, "ucx:shm"));
    std::vector<float> data(256, 1.0F);
    const auto begin = Clock::now();
    if (rank.rank() == 2) {  // Forwards to rank 3.
      TensorView null(data);
      null.data = nullptr;
      expect_error(Errc::invalid_argument, {"null"}, [&] { group.broadcast(null, 0); });
    } else if (rank.rank() == 3) {
      expect_error(Errc::mismatch, {"rank 2 refused", "null"}, [&] { group.broadcast(data, 0); });
    } else {
      group.broadcast(data, 0);
    }
    expect_error({Errc::mismatch, Errc::aborted}, {"rank 2 refused", "null"},
                 [&] { group.barrier(); });
    EXPECT_LT(Clock::now() - begin, patience() * 2s);
    return std::string();
  });
}

TEST(Ucx, AMessageThatIsNeverReceivedIsLoggedAtTheEnd) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    auto options = options_of(rank, "ucx:shm");
    std::mutex mutex;
    std::string logged;
    options.logger = [&](LogLevel level, std::string_view text) {
      const std::lock_guard lock(mutex);
      if (level == LogLevel::error) logged += text;
    };
    {
      auto group = ProcessGroup::create(options);
      std::vector<float> data(4, 1.0F);
      if (rank.rank() == 0) group.send(data, 1, 5);
      group.barrier();
    }
    EXPECT_EQ(logged.find("rank 1 has not received a message of rank 0") != std::string::npos,
              rank.rank() == 1)
        << logged;
    return std::string();
  });
}

TEST(Ucx, ALargeSendWhoseReceiveIsRefusedEnds) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    auto group = ProcessGroup::create(options_of(rank, "ucx:shm"));
    std::vector<float> data(4 * MiB / sizeof(float), 1.0F);
    if (rank.rank() == 0) {
      expect_error(Errc::mismatch, {"rank 1 refused"}, [&] { group.send(data, 1); });
    } else {
      TensorView null(data);
      null.data = nullptr;
      expect_error(Errc::invalid_argument, {"null"}, [&] { group.recv(null, 0); });
    }
    expect_usable(group);
    return std::string();
  });
}

TEST(Ucx, AMessageForWhichNoThreadWaitsMakesProgress) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    auto group = ProcessGroup::create(options_of(rank, "ucx:shm"));
    std::vector<float> data(4 * MiB / sizeof(float), static_cast<float>(rank.rank()));
    if (rank.rank() == 0) {
      auto sent = group.send_async(data, 1);
      rank.barrier();  // Of the store. The rank is busy with other work.
      sent.wait();
    } else {
      const auto begin = Clock::now();
      group.recv(data, 0);
      EXPECT_LT(Clock::now() - begin, 5s);
      EXPECT_EQ(data.back(), 0);
      rank.barrier();
    }
    return std::string();
  });
}

TEST(Ucx, AGroupMayEndWithUnmatchedMessages) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    std::vector<float> large(4 * MiB / sizeof(float), 1.0F);
    std::vector<float> small(4, 1.0F);
    {
      auto options = options_of(rank, "ucx:shm");
      options.timeout = 1s;
      auto group = ProcessGroup::create(options);
      expect_usable(group);
      auto unmatched = group.send_async(large, 1 - rank.rank(), 1);
      group.send(small, 1 - rank.rank(), 2);  // It does not wait for the receiver.
      expect_error({Errc::timeout, Errc::aborted}, {"send"}, [&] { unmatched.wait(); });
    }
    auto again = ProcessGroup::create(options_of(rank, "ucx:shm", "again"));
    expect_usable(again);
    return std::string();
  });
}

TEST(Ucx, UnmatchedMessagesAreOneLineOfTheLog) {
  on_processes({.size = 2}, [](RankProcess& rank) {
    constexpr int count = 100;
    std::vector<std::string> lines;
    auto options = options_of(rank, "ucx:shm");
    options.logger = [&](LogLevel level, std::string_view text) {
      if (level <= LogLevel::warning && text.starts_with("UCX")) lines.emplace_back(text);
    };
    {
      auto group = ProcessGroup::create(options);
      const std::vector<float> small(4, 1.0F);
      for (int tag = 0; tag < count; ++tag) group.send(small, 1 - rank.rank(), tag);
      group.barrier();  // Its messages come after those.
    }
    EXPECT_EQ(lines.size(), 1) << testing::PrintToString(lines);
    EXPECT_NE(lines.at(0).find(fmt::format("and {} more lines", count - 1)), std::string::npos)
        << lines[0];
    return std::string();
  });
}

TEST(Ucx, ALibraryThatCannotBeLoadedIsNamed) {
  const auto result = on_processes({.size = 1}, [](RankProcess& rank) {
    // The path is found in a process of its own, because the library would stay loaded here.
    const auto path = on_processes({.size = 1}, [](RankProcess&) {
      void* const handle = ::dlopen("libucp.so.0", RTLD_LAZY);
      Dl_info info{};
      if (handle == nullptr || ::dladdr(::dlsym(handle, "ucp_cleanup"), &info) == 0)
        return std::string();
      return std::string(info.dli_fname);
    })[0];
    const bool hidden = ::unshare(CLONE_NEWNS) == 0 &&
                        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                        ::mount("/dev/null", path.c_str(), nullptr, MS_BIND, nullptr) == 0;
    if (!hidden) return std::string("not permitted");
    expect_error(Errc::unsupported, {"ucx", "libucp.so.0", "libucx0"},
                 [&] { ProcessGroup::create(options_of(rank, "ucx")); });
    expect_error(Errc::unsupported, {"libucp.so.0"},
                 [] { (void)choose_backend("ucx", {}, RankPlacement::host); });
    return std::string();
  });
  if (result[0] == "not permitted") GTEST_SKIP() << "mount namespaces are not permitted here";
}

}  // namespace
}  // namespace tutti::test
