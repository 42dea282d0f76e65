#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "commands.hpp"
#include "ranks.hpp"

// Gloo's older classes use buffers bound to a connection. Sending from one sets SO_SNDBUF to the
// message's size, which turns off the kernel's automatic size for good. Later calls with larger
// messages then have one segment under way at a time. If the receiver has been sending too, it
// assumes a dialogue and waits up to 40 ms for data to carry its acknowledgement. One small call of
// the older kind followed by large ones of the newer kind shows it. The library uses no bound
// buffers.

namespace tutti::bench {
namespace {

/// TcpExt DelayedACKs of this network namespace.
std::int64_t delayed_acks_so_far() {
  std::ifstream file("/proc/self/net/netstat");
  std::string names;
  std::string values;
  while (std::getline(file, names) && std::getline(file, values)) {
    std::istringstream name_list(names);
    std::istringstream value_list(values);
    std::string name;
    std::string value;
    while (name_list >> name && value_list >> value)
      if (name == "DelayedACKs") return std::atoll(value.c_str());
  }
  return 0;
}

/// A network for this process and its children alone, so that the counter is theirs.
bool enter_own_network() {
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const int descriptor = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  const bool up = descriptor >= 0 && ioctl(descriptor, SIOCSIFFLAGS, &request) == 0;
  if (descriptor >= 0) close(descriptor);
  return up;
}

struct Step {
  std::string name;
  std::function<void(int call)> run;
};

struct Sum {
  std::int64_t acks = 0;
  double slowest = 0;
};

constexpr std::size_t count_of(std::size_t bytes) {
  return bytes / sizeof(float);
}

Sum run_sequence(Ranks& ranks, const std::string& who, const std::vector<Step>& steps, int calls) {
  using Clock = std::chrono::steady_clock;
  Sum sum;
  for (const auto& step : steps) {
    ranks.meet();
    const auto before = delayed_acks_so_far();
    ranks.meet();
    const auto start = Clock::now();
    double slowest = 0;
    for (int call = 0; call < calls; ++call) {
      const auto begun = Clock::now();
      step.run(call);
      slowest = std::max(slowest, std::chrono::duration<double>(Clock::now() - begun).count());
    }
    const auto mean = std::chrono::duration<double>(Clock::now() - start).count() / calls;
    slowest = ranks.largest(slowest);
    const auto acks = delayed_acks_so_far() - before;
    if (ranks.rank() == 0)
      fmt::print("{:<6} {:<26} mean {:>8.3f} ms, slowest {:>8.3f} ms, delayed ACKs {:>4}\n", who,
                 step.name, mean * 1e3, slowest * 1e3, acks);
    sum.acks += acks;
    sum.slowest = std::max(sum.slowest, slowest);
  }
  return sum;
}

}  // namespace

int delayed_acks(const DelayedAcksOptions& options) {
  constexpr std::size_t small = count_of(64 << 10);
  constexpr std::size_t large = count_of(1 << 20);
  if (!enter_own_network())
    fmt::print("no network namespace of its own: other programs are counted too\n");
  const auto failed = run_ranks(2, [&](Ranks& ranks) {
    std::vector<float> data(large);
    std::vector<float> mine(ranks.rank() == 0 ? large : 0);
    std::vector<float> half(large / 2);
    const auto first = std::span(data).first(small);
    constexpr auto own_choice = Bare::Algorithm::UNSPECIFIED;

    const auto bare = ranks.connect_bare();
    const auto gloo =
        run_sequence(ranks, "gloo",
                     {{"barrier (bound buffers)", [&](int) { bare->bound_barrier(); }},
                      {"all_reduce 64 KiB", [&](int) { bare->all_reduce(first, own_choice); }},
                      {"all_reduce 1 MiB", [&](int) { bare->all_reduce(data, own_choice); }},
                      {"broadcast 1 MiB", [&](int call) { bare->broadcast(data, call % 2); }},
                      {"all_gather 1 MiB", [&](int) { bare->all_gather(half, data); }},
                      {"all_gather_rows 1 MiB, 0",
                       [&](int) {
                         bare->all_gather_rows(mine, data, {large, 0});
                       }}},
                     options.calls);

    auto group = ranks.connect_tutti();
    const std::vector<std::int64_t> rows = {large, 0};
    const auto ours = run_sequence(
        ranks, "tutti",
        {{"barrier", [&](int) { group.barrier(); }},
         {"all_reduce 64 KiB", [&](int) { group.all_reduce(first); }},
         {"all_reduce 1 MiB", [&](int) { group.all_reduce(data); }},
         {"broadcast 1 MiB", [&](int call) { group.broadcast(data, call % 2); }},
         {"all_gather 1 MiB", [&](int) { group.all_gather(half, data); }},
         {"all_gather_rows 1 MiB, 0", [&](int) { group.all_gather(mine, data, std::span(rows)); }}},
        options.calls);
    ranks.meet();

    if (ranks.rank() != 0) return;
    fmt::print("delayed ACKs: gloo {}, tutti {}; slowest call: gloo {:.1f} ms, tutti {:.1f} ms\n",
               gloo.acks, ours.acks, gloo.slowest * 1e3, ours.slowest * 1e3);
    if (gloo.acks <= 100) fmt::print("gloo shows none here: this run says nothing\n");
    if (ours.acks >= 5 || ours.slowest > 0.02)
      throw std::runtime_error("missed: fewer than 5 delayed ACKs and no call above 20 ms");
  });
  return failed == 0 ? 0 : 1;
}

}  // namespace tutti::bench
