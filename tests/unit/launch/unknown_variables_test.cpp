#include "launch/unknown_variables.hpp"

#include <gtest/gtest.h>

namespace tutti::internal {
namespace {

TEST(UnknownVariables, AreNamedWithTheNearestKnownName) {
  const char* const environment[] = {"TUTTI_CHEK=1",    "TUTTI_LOG=info", "PATH=/bin",
                                     "TUTTI_TEST_X=1",  "TUTTI_FOO=1",    "TUTTI_COLOUR=1",
                                     "TUTTI_STOREPORT", nullptr};
  EXPECT_EQ(unknown_variables(environment),
            (std::vector<std::string>{
                "nothing reads the environment variable TUTTI_CHEK; did you mean TUTTI_CHECK?",
                "nothing reads the environment variable TUTTI_FOO",
                "nothing reads the environment variable TUTTI_COLOUR",
                "nothing reads the environment variable TUTTI_STOREPORT; did you mean "
                "TUTTI_STORE_PORT?"}));
}

}  // namespace
}  // namespace tutti::internal
