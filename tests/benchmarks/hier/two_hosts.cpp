// One host of several: forks its ranks, which time all_reduce over hier:shm+gloo and over gloo in
// turn, and counts the bytes that the host sends. tests/benchmarks/hier/two_hosts runs it.
//   two_hosts_bench HOST HOSTS RANKS_PER_HOST contiguous|interleaved STORE MEGABITS [MIB [ROUNDS]]

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <tutti/tutti.hpp>

namespace {

using Clock = std::chrono::steady_clock;

/// Bytes that this network has sent over eth0.
double sent_bytes() {
  std::ifstream table("/proc/self/net/dev");
  for (std::string line; std::getline(table, line);) {
    const auto colon = line.find("eth0:");
    if (colon == std::string::npos) continue;
    std::istringstream fields(line.substr(colon + 5));
    std::array<double, 9> values{};
    for (auto& value : values) fields >> value;
    return values[8];
  }
  return 0;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Timed {
  std::vector<double> seconds;
  std::vector<double> bytes;
};

int run(int host, int hosts, int per_host, int thread, const std::vector<std::string>& args) {
  const bool interleaved = args[3] == "interleaved";
  const int size = hosts * per_host;
  const int rank = interleaved ? thread * hosts + host : host * per_host + thread;
  const double rate = std::stod(args[5]) * 1e6 / 8;
  const auto mib = args.size() > 6 ? std::stoul(args[6]) : 16;
  const int rounds = args.size() > 7 ? std::stoi(args[7]) : 7;
  const auto make = [&](const char* backend) {
    return tutti::ProcessGroup::create({.backend = backend,
                                        .store = tutti::open_store(args[4]),
                                        .rank = rank,
                                        .size = size,
                                        .timeout = std::chrono::minutes(1),
                                        .name = backend});
  };
  auto hier = make("hier:shm+gloo:=eth0");
  auto flat = make("gloo:=eth0");
  std::vector<float> data((mib << 20) / sizeof(float), 0.F);
  Timed over_hier;
  Timed over_flat;
  for (int round = -1; round < rounds; ++round)
    for (auto* group : {&hier, &flat}) {
      hier.barrier();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // The barrier's last bytes.
      const auto bytes = sent_bytes();
      const auto start = Clock::now();
      group->all_reduce(data);
      std::vector<double> took{std::chrono::duration<double>(Clock::now() - start).count()};
      hier.all_reduce(took, tutti::ReduceOp::max);
      auto& timed = group == &hier ? over_hier : over_flat;
      if (round < 0) continue;
      timed.seconds.push_back(took[0]);
      timed.bytes.push_back(sent_bytes() - bytes);
    }
  if (rank != 0) return 0;
  const double needed = static_cast<double>(mib << 20) * 2 * (hosts - 1) / hosts;
  const auto row = [&](const char* name, const Timed& timed) {
    fmt::print(
        "{}, {} ranks: {:.1f} ms, {:.3f} of the link's time for the bytes; host 0 sent "
        "{:.1f} MB of {:.1f}\n",
        name, args[3], median(timed.seconds) * 1e3, median(timed.seconds) * rate / needed,
        median(timed.bytes) / 1e6, needed / 1e6);
  };
  row("hier:shm+gloo", over_hier);
  row("gloo", over_flat);
  const double faster = median(over_flat.seconds) / median(over_hier.seconds);
  const double least = interleaved ? 2.5 : 1.35;
  const bool in_time = median(over_hier.seconds) * rate / needed <= 1.1;
  fmt::print("{}: at most 1.1 of the link's time\n", in_time ? "ok" : "MISSED");
  fmt::print("{}: {:.2f} times faster than gloo; at least {}\n", faster >= least ? "ok" : "MISSED",
             faster, least);
  std::fflush(stdout);
  return in_time && faster >= least ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() < 6) return 2;
  const int per_host = std::stoi(args[2]);
  for (int thread = 0; thread < per_host; ++thread)
    if (::fork() == 0) {
      try {
        ::_exit(run(std::stoi(args[0]), std::stoi(args[1]), per_host, thread, args));
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ::_exit(1);
      }
    }
  int failed = 0;
  for (int status = 0; ::wait(&status) > 0;) failed |= status;
  return failed == 0 ? 0 : 1;
}
