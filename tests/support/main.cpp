#include <gtest/gtest.h>

#include "support/failure_watch.hpp"
#include "support/ranks.hpp"

namespace tutti::test {

namespace {

thread_local int fatal_failures = 0;

class Listener final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.fatally_failed()) ++fatal_failures;
  }
};

class SharedGroups final : public testing::Environment {
  void TearDown() override { drop_shared_groups(); }
};

}  // namespace

FailureWatch::FailureWatch() noexcept : before_(fatal_failures) {}

bool FailureWatch::fatal() const noexcept {
  return fatal_failures != before_;
}

}  // namespace tutti::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new tutti::test::Listener);
  testing::AddGlobalTestEnvironment(new tutti::test::SharedGroups);
  return RUN_ALL_TESTS();
}
