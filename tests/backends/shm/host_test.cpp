// The ends of processes.

#include "shm/host.hpp"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "shm/unix_socket.hpp"
#include "values/host_identity.hpp"

namespace tutti::test {
namespace {

namespace shm = backend::shm;

// A forked child of the process holds its socket and goes on.
TEST(ProcessDescriptor, BecomesReadableWhenTheProcessEnds) {
  int go[2];
  int told[2];
  ASSERT_EQ(::pipe(go), 0);
  ASSERT_EQ(::pipe(told), 0);
  const auto child = ::fork();
  if (child == 0) {
    ::close(go[1]);
    std::string text;
    const auto listener = shm::listen_anywhere(1, text);
    const auto forked = ::fork();
    if (forked == 0) ::pause();
    text += std::to_string(forked);
    [[maybe_unused]] auto n = ::write(told[1], text.data(), text.size());
    n = ::read(go[0], text.data(), 1);  // The end of the pipe.
    ::_exit(0);
  }
  std::string text(100, ' ');
  ASSERT_GT(::read(told[0], text.data(), text.size()), 33);
  const auto socket = shm::connect_to(std::string_view(text).substr(0, 33));
  ASSERT_TRUE(socket && socket->is_open());
  const auto user = std::to_string(::geteuid());
  EXPECT_TRUE(shm::is_process(*socket, child, user) && shm::is_process(*socket, -1, user));
  EXPECT_FALSE(shm::is_process(*socket, child, user + "0"));
  const auto by_number = shm::process_descriptor(child);
  const shm::Descriptor by_socket(internal::peer_process(socket->get()));
  for (const auto* process : {&by_number, &by_socket}) {
    if (process == &by_socket && !internal::host_identity().sees_peers) break;
    pollfd event{process->get(), POLLIN, 0};
    EXPECT_EQ(::poll(&event, 1, 0), process == &by_socket ? 1 : 0);
    if (process == &by_number) ::close(go[1]);
    EXPECT_EQ(::poll(&event, 1, 10'000), 1);
  }
  ::kill(std::stoi(text.substr(33)), SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(shm::process_descriptor(child).is_open());
  for (const int end : {go[0], told[0], told[1]}) ::close(end);
}

}  // namespace
}  // namespace tutti::test
