#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

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

/// True for root, on a system with SO_PEERPIDFD (docs/shm.md).
bool has_containers() {
  constexpr int peer_process = 77;
  std::array<int, 2> ends{};
  if (::geteuid() != 0 || ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) return false;
  int process = -1;
  socklen_t length = sizeof process;
  const bool has = ::getsockopt(ends[0], SOL_SOCKET, peer_process, &process, &length) == 0;
  for (const int file : {ends[0], ends[1], process})
    if (file >= 0) ::close(file);
  return has;
}

class SharedGroups final : public testing::Environment {
  void TearDown() override { drop_shared_groups(); }
};

}  // namespace

FailureWatch::FailureWatch() noexcept : before_(fatal_failures) {}

bool FailureWatch::fatal() const noexcept {
  return fatal_failures != before_;
}

}  // namespace tutti::test

// False reports of ThreadSanitizer, which does not see the atomics of libraries that are not
// instrumented. libstdc++ counts the owners of an exception_ptr: a rank reads its exception, then
// the worker releases the last reference. libgloo counts in an unbound buffer: its last member
// waits until the I/O thread has released the buffer. Only then are the other members destroyed,
// and only then may the caller's memory be, which Pair::read writes and Pair::write reads.
// (tests/backends/gloo tests with poison that nothing is written after an error.) When
// ThreadSanitizer has lost the I/O thread's stack, its report has the destructor alone, or the
// `default_delete` that frees the memory.
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
  if (std::getenv("TUTTI_TEST_CONTAINERS") != nullptr && !tutti::test::has_containers()) {
    std::puts("skipped: needs root and SO_PEERPIDFD (Linux 6.5)");
    return 77;
  }
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new tutti::test::Listener);
  testing::AddGlobalTestEnvironment(new tutti::test::SharedGroups);
  return RUN_ALL_TESTS();
}

// Threads that outlive main(), as those of on_threads() do, cannot free their part of OpenSSL's
// state: its clean-up at the end of the process has removed the function that would. Threads that
// end before do free it.
extern "C" const char* __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libcrypto\n";
}
