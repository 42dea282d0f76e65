#include <tutti/init.hpp>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/store/store_server.hpp>
#include <tutti/store/token.hpp>

#include "launch/cluster.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "support/scoped_variables.hpp"
#include "support/temporary_directory.hpp"

namespace tutti::test {
namespace {

/// A launcher with values of the test.
class FakeEnvironment final : public ClusterEnvironment {
 public:
  explicit FakeEnvironment(std::optional<ClusterInfo> info) : info_(std::move(info)) {}
  std::optional<ClusterInfo> detect() const override {
    ++asked;
    return info_;
  }
  mutable int asked = 0;

 private:
  std::optional<ClusterInfo> info_;
};

std::shared_ptr<const FakeEnvironment> told(std::optional<ClusterInfo> info) {
  return std::make_shared<const FakeEnvironment>(std::move(info));
}

GroupOptions on_local(const std::string& name = "world") {
  return {.backend = "local", .timeout = 15s, .name = name, .checked = false};
}

/// Clears the launchers' variables of this process.
class Init : public testing::Test {
 protected:
  Init() {
    for (const char* name :
         {"TUTTI_RANK", "TUTTI_SIZE", "TUTTI_STORE", "TUTTI_STORE_HOSTED", "TUTTI_STORE_PORT",
          "TUTTI_STORE_OPEN", "TUTTI_TOKEN_FILE", "TUTTI_JOB", "RANK", "WORLD_SIZE", "MASTER_ADDR",
          "MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
          "PALS_RANKID", "SLURM_PROCID", "SLURM_NTASKS"})
      nothing.set(name, nullptr);
  }
  ScopedVariables nothing{};
};

/// A port that was free when checked, as "tcp://127.0.0.1:port".
std::string free_address() {
  return "tcp://127.0.0.1:" + std::to_string(StoreServer({.host = "127.0.0.1"}).port());
}

TEST_F(Init, WithoutALauncherThereIsNoGroup) {
  expect_error(Errc::not_initialized, {"TUTTI_RANK", "TUTTI_SIZE"}, [] { (void)init(); });
  expect_error(Errc::not_initialized, {}, [] { (void)init({.environment = told(std::nullopt)}); });
}

TEST_F(Init, WithoutALauncherAProgramMayBeAlone) {
  auto alone = init({.environment = told(std::nullopt), .alone_without_launcher = true});
  EXPECT_EQ(alone.rank(), 0);
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.all_reduce(7), 7);
  const TemporaryDirectory directory;
  on_threads(2, [&](int rank) {
    const ClusterInfo launched{.rank = rank, .size = 2, .store = "file://" + directory.path()};
    auto group =
        init({.group = on_local(), .environment = told(launched), .alone_without_launcher = true});
    EXPECT_EQ(group.all_reduce(1), 2);
  });
}

TEST_F(Init, TakesThePlaceThatTheEnvironmentTells) {
  const TemporaryDirectory directory;
  on_threads(3, [&](int rank) {
    const auto environment = told(ClusterInfo{
        .launcher = "fake", .rank = rank, .size = 3, .store = "file://" + directory.path()});
    auto group = init({.group = on_local(), .environment = environment});
    EXPECT_EQ(group.rank(), rank);
    EXPECT_EQ(group.size(), 3);
    EXPECT_EQ(group.backend(), "local");
    std::vector<std::int32_t> sum{rank};
    group.all_reduce(sum);
    EXPECT_EQ(sum[0], 3);
  });
}

TEST_F(Init, WhatTheCallerSetsWins) {
  const auto environment = told(ClusterInfo{.rank = 5, .size = 9});
  auto group = init({.rank = 0, .size = 1, .group = on_local(), .environment = environment});
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(environment->asked, 0) << "there was nothing to ask";
}

TEST_F(Init, RankAndSizeOfTheGroupOptionsAreRefused) {
  GroupOptions options = on_local();
  options.rank = 7;
  options.size = 8;
  expect_error(Errc::invalid_argument, {"rank 7 of 8", "InitOptions::rank"},
               [&] { (void)init({.rank = 0, .size = 1, .group = options}); });
}

TEST_F(Init, RankAndSizeGoTogether) {
  expect_error(Errc::invalid_argument, {"rank is set", "size is not"},
               [] { (void)init({.rank = 0}); });
  expect_error(Errc::invalid_argument, {"size is set", "rank is not"},
               [] { (void)init({.size = 2}); });
}

TEST_F(Init, ARankOutsideOfItsSizeIsRefused) {
  expect_error(Errc::invalid_argument, {"rank is 2", "0 to 1"}, [] {
    GroupOptions options = on_local();
    options.store = make_memory_store();
    (void)init({.rank = 2, .size = 2, .group = options});
  });
  expect_error(Errc::invalid_argument, {"size is 0"},
               [] { (void)init({.rank = 0, .size = 0, .group = on_local()}); });
}

TEST_F(Init, SeveralRanksNeedAStore) {
  const std::vector<std::string> texts{"2 ranks", "store", "TUTTI_STORE"};
  expect_error(Errc::invalid_argument, texts,
               [] { (void)init({.rank = 0, .size = 2, .group = on_local()}); });
  expect_error(Errc::invalid_argument, texts, [] {
    (void)init({.group = on_local(), .environment = told(ClusterInfo{.rank = 0, .size = 2})});
  });
  const ScopedVariables set{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  expect_error(Errc::invalid_argument,
               {"2 ranks", "Open MPI gives no address", "TUTTI_STORE", "MASTER_ADDR"},
               [] { (void)init({.group = on_local()}); });
}

TEST_F(Init, TheStoreOfTheVariablesServesARankThatNoLauncherStarted) {
  const TemporaryDirectory directory;
  const auto address = "file://" + directory.path();
  const ScopedVariables set{{"TUTTI_STORE", address.c_str()}};
  on_threads(2, [&](int rank) {
    auto group = init({.rank = rank, .size = 2, .group = on_local()});
    group.barrier();
  });
}

TEST_F(Init, TheCallersStoreWins) {
  const auto store = make_memory_store();
  on_threads(2, [&](int rank) {
    GroupOptions options = on_local();
    options.store = store;
    auto group = init(
        {.group = options,
         .environment = told(ClusterInfo{.rank = rank, .size = 2, .store = "nowhere://at/all"})});
    group.barrier();
  });
}

TEST_F(Init, TheStoreOfTheEnvironmentServesARankThatTheCallerSet) {
  const TemporaryDirectory directory;
  on_threads(2, [&](int rank) {
    auto group =
        init({.rank = rank,
              .size = 2,
              .group = on_local(),
              .environment =
                  told(ClusterInfo{.rank = 0, .size = 1, .store = "file://" + directory.path()})});
    EXPECT_EQ(group.rank(), rank);
    group.barrier();
  });
}

TEST_F(Init, ASecondCallMakesASecondIndependentGroup) {
  const TemporaryDirectory directory;
  on_threads(2, [&](int rank) {
    const auto environment =
        told(ClusterInfo{.rank = rank, .size = 2, .store = "file://" + directory.path()});
    auto first = init({.group = on_local("first"), .environment = environment});
    auto second = init({.group = on_local("second"), .environment = environment});
    first.barrier();
    second.barrier();
    // Both ranks leave the first barrier before one of them breaks that group.
    if (rank == 0) first.abort("not needed any more");
    std::vector<std::int32_t> sum{1};
    second.all_reduce(sum);
    EXPECT_EQ(sum[0], 2);
  });
}

TEST_F(Init, LeavesTheEnvironmentAsItWas) {
  const auto variables = [] {
    std::vector<std::string> all;
    for (char** entry = ::environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
    return all;
  };
  const ScopedVariables set{{"TUTTI_RANK", "0"}, {"TUTTI_SIZE", "1"}};
  const auto before = variables();
  auto group = init({.group = on_local()});
  group.barrier();
  EXPECT_EQ(variables(), before);
}

// Processes find each other through the variables and the files, and get the error that `local`
// serves threads alone.
TEST_F(Init, LocalTellsProcessesToChooseAnotherBackend) {
  const TemporaryDirectory directory;
  const auto address = "file://" + directory.path();
  const auto ends = in_children(2, [&](int rank) {
    const auto text = std::to_string(rank);
    const ScopedVariables set{
        {"TUTTI_RANK", text.c_str()}, {"TUTTI_SIZE", "2"}, {"TUTTI_STORE", address.c_str()}};
    try {
      GroupOptions options = on_local();
      options.timeout = 10s;
      (void)init({.group = options});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("a group across processes");
  });
  for (const auto& end : ends) {
    EXPECT_TRUE(end.output.starts_with("unsupported: ")) << end.output;
    EXPECT_NE(end.output.find("processes"), std::string::npos) << end.output;
  }
}

ClusterInfo info_of_rank(int rank, const std::string& store) {
  return {.rank = rank, .size = 2, .store = store};
}

TEST(OpenStoreOfALaunch, IsThereForTheOthersUntilTheyHaveLeft) {
  const auto address = free_address();
  auto hosted = open_cluster_store(info_of_rank(0, address), 5s);
  auto other = open_cluster_store(info_of_rank(1, address), 5s);
  auto left = std::async(std::launch::async, [&hosted] { hosted.reset(); });
  EXPECT_EQ(left.wait_for(100ms), std::future_status::timeout) << "a rank still needs it";
  other->set("key", "value");
  EXPECT_EQ(other->get_text("key", 0s), "value");
  other.reset();
  EXPECT_EQ(left.wait_for(5s), std::future_status::ready);
}

TEST(OpenStoreOfALaunch, DoesNotWaitForOthersThatNeverCame) {
  const auto before = std::chrono::steady_clock::now();
  (void)open_cluster_store(info_of_rank(0, free_address()), 5s);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
}

TEST(OpenStoreOfALaunch, WaitsNotForLongWhileAnExceptionUnwinds) {
  const auto address = free_address();
  std::shared_ptr<Store> other;
  const auto before = std::chrono::steady_clock::now();
  try {
    const auto hosted = open_cluster_store(info_of_rank(0, address), 5s);
    other = open_cluster_store(info_of_rank(1, address), 5s);
    throw std::runtime_error("something else");
  } catch (const std::runtime_error&) {
  }
  EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
}

TEST(OpenStoreOfALaunch, RefusesAPortInUseByItsName) {
  const StoreServer another({.host = "127.0.0.1"});
  const auto address = "tcp://127.0.0.1:" + std::to_string(another.port());
  expect_error(Errc::backend, {"rank 0 cannot host", address, "TUTTI_STORE_PORT"},
               [&] { (void)open_cluster_store(info_of_rank(0, address), 5s); });
}

// A connection holds the port for a while, such as a closing one of another program.
TEST(OpenStoreOfALaunch, WaitsForAPortThatIsHeldWithoutAListener) {
  const int holder = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof name;
  ASSERT_EQ(::bind(holder, reinterpret_cast<const sockaddr*>(&name), size), 0);
  ASSERT_EQ(::getsockname(holder, reinterpret_cast<sockaddr*>(&name), &size), 0);
  const auto address = "tcp://127.0.0.1:" + std::to_string(ntohs(name.sin_port));
  expect_error(Errc::backend, {"rank 0 cannot host", address},
               [&] { (void)open_cluster_store(info_of_rank(0, address), 200ms); });
  auto hosting = std::async(std::launch::async,
                            [&] { return open_cluster_store(info_of_rank(0, address), 10s); });
  EXPECT_EQ(hosting.wait_for(100ms), std::future_status::timeout);
  ::close(holder);
  EXPECT_NE(hosting.get(), nullptr);
}

TEST(OpenStoreOfALaunch, IsNotHostedWhenItRunsAlready) {
  const StoreServer server({.host = "127.0.0.1"});
  auto info = info_of_rank(0, "tcp://127.0.0.1:" + std::to_string(server.port()));
  info.hosts_store = false;
  const auto store = open_cluster_store(info, 5s);
  EXPECT_EQ(server.clients(), 1);
  info.store = free_address();
  expect_error(Errc::timeout, {info.store.substr(6)},
               [&] { (void)open_cluster_store(info, 200ms); });
}

TEST(OpenStoreOfALaunch, KeepsTheKeysOfARunApart) {
  const StoreServer server({.host = "127.0.0.1"});
  auto info = info_of_rank(1, "tcp://127.0.0.1:" + std::to_string(server.port()));
  info.run = "job/0/";
  open_cluster_store(info, 5s)->set("key", "old");
  info.run = "job/1/";
  EXPECT_FALSE(open_cluster_store(info, 5s)->try_get("key").has_value());
  EXPECT_EQ(open_store(info.store, 5s)->get_text("job/0/key", 0s), "old");
}

// --- Tokens

TEST(OpenStoreOfALaunch, AsksForATokenBeforeItListensForOtherHosts) {
  // 192.0.2.0/24 is for documents: a server there would fail, and a client would wait.
  for (const int rank : {0, 1}) {
    for (const char* address : {"tcp://192.0.2.1:29500", "tcp://some-host:29500"})
      expect_error(Errc::invalid_argument, {address, "TUTTI_TOKEN_FILE", "TUTTI_STORE_OPEN=1"},
                   [&] { (void)open_cluster_store(info_of_rank(rank, address), 10s); });
  }
  auto open = info_of_rank(0, "tcp://192.0.2.1:29500");
  open.open_store = true;
  expect_error(Errc::invalid_argument, {"cannot listen on 192.0.2.1"},
               [&] { (void)open_cluster_store(open, 5s); });
}

TEST(OpenStoreOfALaunch, RanksOfOneHostMeetOnLoopbackWithoutAToken) {
  const auto port = free_address().substr(std::string("tcp://127.0.0.1").size());
  const auto on_one_host = [&](int rank) {
    auto info = info_of_rank(rank, "tcp://192.0.2.1" + port);
    info.local_size = 2;
    return info;
  };
  const auto hosted = open_cluster_store(on_one_host(0), 5s);
  const auto other = open_cluster_store(on_one_host(1), 5s);
  hosted->set("key", "value");
  EXPECT_EQ(other->get_text("key", 1s), "value");
  EXPECT_EQ(other->local_address(), "127.0.0.1");
}

TEST(OpenStoreOfALaunch, ATokenFileAuthenticatesTheRanks) {
  if (!StoreToken::available()) GTEST_SKIP() << "built without OpenSSL";
  const TemporaryDirectory directory;
  const auto file_of = [&](const std::string& name) {
    const auto path = directory.path() + "/" + name;
    std::ofstream(path) << StoreToken::random().text() << "\n";
    EXPECT_EQ(::chmod(path.c_str(), 0600), 0);
    return path;
  };
  const auto address = free_address();
  const auto with = [&](int rank, const std::string& file, std::uint32_t generation = 0) {
    auto info = info_of_rank(rank, address);
    info.token_file = file;
    info.generation = generation;
    return info;
  };
  const auto right = file_of("right");
  const auto hosted = open_cluster_store(with(0, right), 5s);
  const auto other = open_cluster_store(with(1, right), 5s);
  hosted->set("key", "value");
  EXPECT_EQ(other->get_text("key", 1s), "value");
  expect_error(Errc::mismatch, {"another token"},
               [&] { (void)open_cluster_store(with(1, file_of("wrong")), 5s); });
  expect_error(Errc::mismatch, {"generation 0 of the job, the client to 1"},
               [&] { (void)open_cluster_store(with(1, right, 1), 5s); });
  expect_error(Errc::invalid_argument, {"needs a token"},
               [&] { (void)open_cluster_store(info_of_rank(1, address), 5s); });
  EXPECT_EQ(::chmod(right.c_str(), 0644), 0);
  expect_error(Errc::invalid_argument, {right, "0644"},
               [&] { (void)open_cluster_store(with(1, right), 5s); });
}

// --- Devices ---

TEST(InitDevice, IsTheLocalRankModuloTheDevices) {
  BackendEntry entry{};
  entry.serves = [](Device device) noexcept { return device.type != DeviceType::cpu; };
  entry.device_count = [] { return 2; };
  const GroupOptions group{.backend = "devices", .rank = 3, .size = 6};
  EXPECT_TRUE(internal::needs_device(entry, group));
  const auto device = [&](int rank, int local_rank) {
    return internal::device_of_rank(entry, group,
                                    ClusterInfo{.rank = rank, .size = 6, .local_rank = local_rank});
  };
  EXPECT_EQ(device(3, 1), (Device{DeviceType::cuda, 1}));
  EXPECT_EQ(device(3, 2), (Device{DeviceType::cuda, 0}));
  EXPECT_EQ(device(2, 1), (Device{DeviceType::cuda, 1}));  // The caller permutes the ranks.
  const std::vector<std::string> unknown{"backend 'devices'", "rank 3 of 6",
                                         "InitOptions::group.device"};
  expect_error(Errc::invalid_argument, unknown, [&] { device(3, -1); });
  expect_error(Errc::invalid_argument, unknown,
               [&] { internal::device_of_rank(entry, group, std::nullopt); });
  EXPECT_EQ(internal::device_of_rank(entry, {}, std::nullopt), (Device{DeviceType::cuda, 0}));

  EXPECT_FALSE(internal::needs_device(entry, {.device = {DeviceType::cuda, 1}}));
  entry.serves = [](Device) noexcept { return true; };
  EXPECT_FALSE(internal::needs_device(entry, group));
}

}  // namespace
}  // namespace tutti::test
