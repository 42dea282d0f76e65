#include "processes.hpp"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <stdexcept>

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Child {
  pid_t process = -1;
  int output = -1;  // The reading end of a pipe.
};

/// Waits for the children of this process, and ends as this one does.
[[noreturn]] void end_as(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  while (::wait(nullptr) > 0) {  // Forked children of a rank may outlive it.
  }
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

/// Goes on as process 2 of a process namespace, as in a container. This process ends as that one.
void enter_own_processes() {
  if (::unshare(CLONE_NEWPID) != 0) ::_exit(1);
  for (int i = 0; i < 2; ++i) {
    const pid_t child = ::fork();
    if (child != 0) end_as(child);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  }
}

Child start(int number, const std::function<std::string(int)>& body) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) throw std::runtime_error("pipe");
  const pid_t process = ::fork();
  if (process < 0) throw std::runtime_error("fork");
  if (process > 0) {
    ::close(ends[1]);
    return {process, ends[0]};
  }
  if (std::getenv("TUTTI_TEST_CONTAINERS") != nullptr) enter_own_processes();
  std::string text;
  try {
    text = body(number);
  } catch (const std::exception& error) {
    text = std::string("threw ") + error.what();
  }
  const char* from = text.data();
  for (auto left = text.size(); left > 0;) {
    const auto n = ::write(ends[1], from, left);
    if (n <= 0) ::_exit(2);
    from += n;
    left -= static_cast<std::size_t>(n);
  }
  ::_exit(0);
}

ChildEnd finish(const Child& child, Clock::time_point until) {
  ChildEnd end;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd ready{child.output, POLLIN, 0};
    if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) <= 0) break;
    std::array<char, 4096> part;
    const auto n = ::read(child.output, part.data(), part.size());
    if (n <= 0) {  // The child has closed its end.
      end.ended = true;
      break;
    }
    end.output.append(part.data(), static_cast<std::size_t>(n));
  }
  ::close(child.output);
  if (!end.ended) ::kill(child.process, SIGKILL);
  int status = 0;
  ::waitpid(child.process, &status, 0);
  end.ended = end.ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return end;
}

}  // namespace

std::vector<ChildEnd> in_children(int count, const std::function<std::string(int)>& body,
                                  std::chrono::seconds limit) {
  std::vector<Child> children;
  for (int i = 0; i < count; ++i) children.push_back(start(i, body));
  const auto until = Clock::now() + limit;
  std::vector<ChildEnd> ends;
  for (const Child& child : children) ends.push_back(finish(child, until));
  return ends;
}

ChildEnd in_child(const std::function<std::string()>& body) {
  return in_children(1, [&](int) { return body(); }).front();
}

bool is_emulated() {
  const auto child = in_child([]() -> std::string {
    const rlimit nothing_more{1, 1};
    if (::setrlimit(RLIMIT_AS, &nothing_more) != 0) return "setrlimit";
    constexpr std::size_t bytes = std::size_t{1} << 20;
    void* const data =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return data == MAP_FAILED ? "limited" : "emulated";
  });
  return child.output == "emulated";
}

}  // namespace tutti::test
