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

// ThreadSanitizer sees no atomics of libraries that are built without it. Two of them put threads
// in order, so that their reports are false: libstdc++ counts the owners of an exception_ptr: a
// rank reads its error, then the worker releases it. libgloo counts the users of an unbound buffer:
// its destructor waits until the I/O thread has released it, then the memory is freed
// (`default_delete`, where the deleting destructor ends in a jump). Pair::read writes to the
// caller's memory and Pair::write reads it before that; poison in tests/backends/gloo shows that
// nothing is written after an error. A report without the I/O thread's stack has only the
// destructor.
extern "C" const char* __tsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
const char* __tsan_default_suppressions() {            // NOLINT(bugprone-reserved-identifier)
  return "race:std::__exception_ptr::exception_ptr::_M_release\n"
         "race:std::logic_error::~logic_error\n"
         "race:std::runtime_error::~runtime_error\n"
         "race:gloo::transport::tcp::Pair::read\n"
         "race:gloo::transport::tcp::Pair::write\n"
         "race:gloo::transport::tcp::UnboundBuffer::~UnboundBuffer\n"
         "race:std::default_delete<gloo::transport::UnboundBuffer>::operator()\n"
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
