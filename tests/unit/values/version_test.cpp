#include <gtest/gtest.h>

#include <tutti/version.hpp>

namespace {

TEST(Version, LibraryAndHeadersAreOfOneBuild) {
  EXPECT_EQ(tutti::library_version(), tutti::header_version);
}

TEST(Version, TextIsTheNumbersOfTheProject) {
  EXPECT_EQ(tutti::library_version_string(), PROJECT_VERSION);
}

}  // namespace
