#include "copies.hpp"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/scoped_variables.hpp"
#include "support/temporary_directory.hpp"

// Copies of a library in one process: TUTTI_STAND_IN is one with NCCL's functions, without NCCL.

namespace tutti::gpu {
namespace {

namespace files = std::filesystem;

constexpr const char* host = "NCCL_HOSTID";
constexpr const char* debug_file = "NCCL_DEBUG_FILE";

int calls_of(const backend::nccl::NcclApi& nccl) {
  ncclUniqueId id;
  EXPECT_EQ(nccl.get_unique_id(&id), ncclSuccess);
  int calls = 0;
  std::memcpy(&calls, id.internal, sizeof calls);
  return calls;
}

TEST(Copies, EachHasStaticsOfItsOwn) {
  const auto first = backend::nccl::load_nccl(TUTTI_STAND_IN);
  const Copy second = load_copy(TUTTI_STAND_IN, 1);
  const Copy third = load_copy(TUTTI_STAND_IN, 2);
  EXPECT_EQ(second.bytes, files::file_size(TUTTI_STAND_IN));
  EXPECT_EQ(calls_of(first), 1);
  EXPECT_EQ(calls_of(first), 2);
  EXPECT_EQ(calls_of(second.api), 1);
  EXPECT_EQ(calls_of(third.api), 1);
  EXPECT_EQ(calls_of(second.api), 2);
  // The same file twice is one library.
  EXPECT_EQ(calls_of(backend::nccl::load_nccl(TUTTI_STAND_IN)), 3);
}

TEST(Copies, EachKeepsTheHostOfItsFirstUse) {
  const test::ScopedVariables variables{{host, "before"}, {debug_file, "log"}};
  std::vector<Copy> copies;
  for (int number = 3; number < 6; ++number) {
    copies.push_back(load_copy(TUTTI_STAND_IN, number));
    as_host(number, [&] {
      EXPECT_EQ(std::getenv(debug_file), "log.copy" + std::to_string(number));
      ncclComm_t comm = nullptr;
      const auto& nccl = copies.back().api;
      EXPECT_EQ(nccl.comm_init_rank_config(&comm, 1, {}, 0, nullptr), ncclSuccess);
    });
  }
  EXPECT_STREQ(std::getenv(host), "before");
  EXPECT_STREQ(std::getenv(debug_file), "log");
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(copies[static_cast<std::size_t>(i)].api.get_last_error(nullptr),
              "tutti-" + std::to_string(3 + i));
}

TEST(Copies, LeaveNothingInTheFolderOfTemporaryFilesAndNeedRoomThere) {
  const test::TemporaryDirectory folder;
  const test::ScopedVariables variables{{"TMPDIR", folder.path().c_str()}};
  (void)load_copy(TUTTI_STAND_IN, 6);
  EXPECT_TRUE(files::is_empty(folder.path()));
  // A file of holes that no disk has room for; and one that is no library.
  const auto file = files::path(folder.path()) / "file";
  std::ofstream(file) << "no library";
  test::expect_error(Errc::unsupported, {"cannot be loaded"}, [&] { (void)load_copy(file, 7); });
  files::resize_file(file, std::uintmax_t{1} << 43);
  test::expect_error(Errc::resource_exhausted, {"a copy of", "8388608 MiB", "set TMPDIR"},
                     [&] { (void)load_copy(file, 8); });
  EXPECT_EQ(std::distance(files::directory_iterator(folder.path()), {}), 1);
}

TEST(Copies, OfTheInstalledNcclAreNcclsOfTheirOwn) {
  files::path installed;
  try {
    installed = file_of(backend::nccl::nccl_api());
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const test::TemporaryDirectory folder;
  const auto log = folder.path() + "/log";
  const test::ScopedVariables variables{
      {debug_file, log.c_str()}, {"NCCL_DEBUG", "INFO"}, {"NCCL_SOCKET_IFNAME", "lo"}};
  std::set<std::string> ids;
  for (int number = 1; number < 4; ++number) {
    const Copy copy = load_copy(installed, number);
    ncclUniqueId id;
    as_host(number, [&] { ASSERT_EQ(copy.api.get_unique_id(&id), ncclSuccess); });
    ids.emplace(id.internal, sizeof id.internal);
    // NCCL opens its log once in a process; here each copy has opened one.
    EXPECT_GT(files::file_size(log + ".copy" + std::to_string(number)), 0U);
    std::cout << copy.bytes << " bytes, copied in " << copy.copy_s << " s, loaded in "
              << copy.load_s << " s\n";
  }
  EXPECT_EQ(ids.size(), 3U);
}

}  // namespace
}  // namespace tutti::gpu
