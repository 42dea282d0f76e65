// The ends of processes.

#include "shm/host.hpp"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace tutti::test {
namespace {

namespace shm = backend::shm;

TEST(ProcessDescriptor, BecomesReadableWhenTheProcessEnds) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto child = ::fork();
  if (child == 0) {
    ::close(ends[1]);
    char byte = 0;
    [[maybe_unused]] const auto n = ::read(ends[0], &byte, 1);
    ::_exit(0);
  }
  const auto process = shm::process_descriptor(child);
  ASSERT_TRUE(process.is_open());
  pollfd event{process.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&event, 1, 0), 0);
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_EQ(::poll(&event, 1, 10'000), 1);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(shm::process_descriptor(child).is_open());
}

}  // namespace
}  // namespace tutti::test
