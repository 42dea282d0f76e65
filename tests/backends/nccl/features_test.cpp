#include <gtest/gtest.h>

#include "backends/nccl/double/bare_rank.hpp"
#include "nccl/nccl_api.hpp"

// The version of the loaded library decides which functions may be called, not the nccl.h of the
// build.

namespace tutti::test::nccl_double {
namespace {

using backend::nccl::Features;
using backend::nccl::NcclApi;

template <int code>
ncclResult_t version(int* value) {
  *value = code;
  return ncclSuccess;
}

/// The functions exist, but are not called.
NcclApi of_version(ncclResult_t (*get_version)(int*)) {
  NcclApi table = *apis().nccl;
  table.get_version = get_version;
  table.mem_alloc = [](void**, std::size_t) { return ncclInternalError; };
  table.mem_free = [](void*) { return ncclInternalError; };
  table.comm_register = [](ncclComm_t, void*, std::size_t, void**) { return ncclInternalError; };
  table.comm_deregister = [](ncclComm_t, void*) { return ncclInternalError; };
  table.comm_window_register = [](ncclComm_t, void*, std::size_t, void**, int) {
    return ncclInternalError;
  };
  table.comm_window_deregister = [](ncclComm_t, void*) { return ncclInternalError; };
  return table;
}

class NcclFeatures : public Double {};

TEST_F(NcclFeatures, AnOldLibraryHasNoneThoughTheSymbolsAreThere) {
  const Features has = Features::of(of_version(version<NCCL_VERSION(2, 18, 5)>));
  EXPECT_EQ(has.version, 21805);
  EXPECT_FALSE(has.memory);
  EXPECT_FALSE(has.registration);
  EXPECT_FALSE(has.windows);
}

TEST_F(NcclFeatures, WindowsBeginWithTheirVersion) {
  const Features before = Features::of(of_version(version<NCCL_VERSION(2, 26, 6)>));
  EXPECT_TRUE(before.memory);
  EXPECT_TRUE(before.registration);
  EXPECT_FALSE(before.windows);
  EXPECT_FALSE(Features::of(of_version(version<NCCL_VERSION(2, 30, 4)>)).windows);
  const Features first = Features::of(of_version(version<NCCL_VERSION(2, 30, 7)>));
  EXPECT_TRUE(first.windows);
  EXPECT_FALSE(first.windows_in_blocks);
  EXPECT_TRUE(Features::of(of_version(version<NCCL_VERSION(2, 31, 2)>)).windows_in_blocks);
}

TEST_F(NcclFeatures, AMissingSymbolCountsMoreThanTheVersion) {
  NcclApi table = of_version(version<NCCL_VERSION(2, 30, 7)>);
  table.comm_window_deregister = nullptr;
  table.mem_free = nullptr;
  const Features has = Features::of(table);
  EXPECT_FALSE(has.windows);
  EXPECT_FALSE(has.memory);
  EXPECT_TRUE(has.registration);
}

TEST_F(NcclFeatures, InfoNamesEachWithItsVersion) {
  EXPECT_EQ(
      to_string(Features{.version = 21900, .memory = true, .registration = true}),
      "memory of NCCL (2.19): yes; registered buffers (2.19): yes; symmetric windows (2.30.7): "
      "no");
}

}  // namespace
}  // namespace tutti::test::nccl_double
