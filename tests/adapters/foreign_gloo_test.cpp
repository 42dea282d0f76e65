#include <string>

#include <gtest/gtest.h>

#include <tutti/backend/backend_table.hpp>

#include "support/errors.hpp"

// This program is linked with LibTorch first, which exports a Gloo of its own to the dynamic
// linker.

namespace tutti::test {
namespace {

TEST(ForeignGloo, IsRefusedByNameAndNotCalled) {
  std::string why;
  for (const auto& entry : backends())
    if (entry.name == "gloo") why = entry.unavailable();
  EXPECT_NE(why.find("libtorch"), std::string::npos) << why;
  expect_error(Errc::unsupported, {"gloo", "libtorch", "LD_PRELOAD"},
               [] { (void)choose_backend("gloo", {}, RankPlacement::host); });
}

}  // namespace
}  // namespace tutti::test
