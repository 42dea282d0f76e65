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

// The count of an exception_ptr's owners is kept in libstdc++, which ThreadSanitizer does not see
// into. A rank reads what it caught, then the worker lets go of it last: no race, but reported.
// The same with Gloo: the last member of its unbound buffer waits, by an atomic count in libgloo,
// until the I/O thread has let go of the buffer; only then are the others destroyed, and only then
// may the caller's memory be (Pair::read writes to it and Pair::write reads it; that nothing is
// written after an error is tested with poison in tests/backends/gloo). Where ThreadSanitizer has
// forgotten what the I/O thread did, only the destructor is left in its report.
extern "C" const char* __tsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
const char* __tsan_default_suppressions() {            // NOLINT(bugprone-reserved-identifier)
  return "race:std::__exception_ptr::exception_ptr::_M_release\n"
         "race:std::logic_error::~logic_error\n"
         "race:std::runtime_error::~runtime_error\n"
         "race:gloo::transport::tcp::Pair::read\n"
         "race:gloo::transport::tcp::Pair::write\n"
         "race:gloo::transport::tcp::UnboundBuffer::~UnboundBuffer\n"
         "race:gloo::transport::tcp::UnboundBuffer::handleRecvCompletion\n"
         "race:gloo::transport::tcp::UnboundBuffer::handleSendCompletion\n"
         "race:gloo::transport::tcp::UnboundBuffer::signalException\n";
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new tutti::test::Listener);
  testing::AddGlobalTestEnvironment(new tutti::test::SharedGroups);
  return RUN_ALL_TESTS();
}
