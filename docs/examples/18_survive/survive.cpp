// Four processes train a network, and one is killed in the middle of a step. The other three make a
// new group and train on.

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iterator>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <tutti/tutti.hpp>

#include "../15_ddp_mlp/mlp.hpp"

namespace {

using namespace std::chrono_literals;

constexpr int processes = 4;
constexpr int killed = 1;
constexpr int killed_in_step = 100;
constexpr int steps = 300;
constexpr double rate = 0.5;
constexpr auto time_to_report = 2s;

/// The numbers of the processes of a group, in the order of their ranks.
using Members = std::vector<int>;

std::string to_text(const Members& members) {
  std::string text;
  for (const int member : members) text += (text.empty() ? "" : " ") + std::to_string(member);
  return text;
}

/// Agrees with the other survivors on the members of the next group. A process that does not report
/// in time is left out.
Members agree(tutti::Store& store, const Members& before, int me, int generation) {
  const auto prefix = "generation " + std::to_string(generation);
  const auto key = [&](int member) { return prefix + " has " + std::to_string(member); };
  store.set(key(me), "");
  Members alive;
  const auto deadline = tutti::Deadline::after(time_to_report);
  for (const int member : before) {
    try {
      store.get(key(member), deadline);
      alive.push_back(member);
    } catch (const tutti::Error& error) {
      if (error.code() != tutti::Errc::timeout) throw;
    }
  }
  // The first list counts, on all processes.
  const std::string mine = to_text(alive);
  const tutti::Bytes agreed = store.compare_set(prefix, {}, std::as_bytes(std::span(mine)));
  std::istringstream list(std::string(reinterpret_cast<const char*>(agreed.data()), agreed.size()));
  return {std::istream_iterator<int>(list), {}};
}

bool has_parameters_of_rank_0(tutti::ProcessGroup& group, mlp::Network<double>& network) {
  bool equal = true;
  for (std::size_t id = 0; id < network.parameter_count(); ++id) {
    const auto mine = network.value(id).values<double>();
    std::vector<double> of_rank_0(mine.begin(), mine.end());
    group.broadcast(of_rank_0, 0);
    equal = equal && std::ranges::equal(mine, of_rank_0);
  }
  return equal;
}

/// Trains in groups of fewer and fewer processes. Returns the lines to print.
std::string train(const std::shared_ptr<tutti::Store>& store, int me) {
  const auto data = mlp::make_spirals();
  mlp::Network<double> network({2, 16, 1}, me);
  std::string lines;
  Members members;
  for (int i = 0; i < processes; ++i) members.push_back(i);
  int step = 0;
  for (int generation = 0; step < steps; ++generation) {
    const auto rank = std::ranges::find(members, me) - members.begin();
    if (rank == std::ssize(members)) return lines + "left out\n";
    try {
      auto group = tutti::ProcessGroup::create({
          .backend = "gloo",
          .store = store,
          .rank = static_cast<int>(rank),
          .size = static_cast<int>(members.size()),
          .timeout = 30s,
          .name = "generation " + std::to_string(generation),
          .logger = [](tutti::LogLevel, std::string_view) {},  // The broken group is expected.
      });
      // The new rank 0 gives its parameters and its step: another rank may have ended one more.
      tutti::ddp::GradientReducer reducer(group, network.parameters(),
                                          {.first_bucket_cap = 256, .divisor = 1});
      group.broadcast(std::span(&step, 1), 0);
      lines += "rank " + std::to_string(group.rank()) + " of " + std::to_string(group.size()) +
               " from step " + std::to_string(step) + " on\n";
      while (step < steps) {
        const auto mine = mlp::part_of_batch(data, step, group);
        network.backward(mine, 1.0 / mlp::rows_of_batch, [&](std::size_t id) {
          reducer.mark_ready(id, network.gradient(id));
          if (me == killed && step == killed_in_step && id == 1) ::raise(SIGKILL);
        });
        reducer.finish();
        network.update(rate);
        ++step;
      }
      lines += has_parameters_of_rank_0(group, network) ? "the parameters are those of rank 0\n"
                                                        : "the parameters differ from rank 0's\n";
    } catch (const tutti::Error& error) {
      if (error.code() != tutti::Errc::peer_lost && error.code() != tutti::Errc::aborted) throw;
      lines += "lost a peer in step " + std::to_string(step) + "\n";
      members = agree(*store, members, me, generation);
      lines += "agreed on the processes " + to_text(members) + "\n";
    }
  }
  char loss[64];
  std::snprintf(loss, sizeof loss, "final loss %.9f\n", network.loss(data));
  return lines + loss;
}

/// Trains as one process that is never killed.
double train_alone() {
  const auto data = mlp::make_spirals();
  auto group = tutti::ProcessGroup::create({.backend = "local"});
  mlp::Network<double> network({2, 16, 1}, 0);
  for (int step = 0; step < steps; ++step) {
    network.backward(mlp::part_of_batch(data, step, group), 1.0 / mlp::rows_of_batch,
                     [](std::size_t) {});
    network.update(rate);
  }
  return network.loss(data);
}

void print_indented(const std::string& lines) {
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) std::printf("  %s\n", line.c_str());
}

}  // namespace

int main() {
  std::string directory = std::filesystem::temp_directory_path() / "survive.XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) return 1;
  std::vector<pid_t> children;
  for (int me = 0; me < processes; ++me) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    const auto store = tutti::make_file_store(directory);
    std::string output;
    try {
      output = train(store, me);
    } catch (const std::exception& error) {
      output = error.what();
    }
    store->set("output of " + std::to_string(me), output);
    ::_exit(0);
  }
  const auto store = tutti::make_file_store(directory);
  for (int process = 0; process < processes; ++process) {
    int status = 0;
    ::waitpid(children[static_cast<std::size_t>(process)], &status, 0);
    std::printf("process %d", process);
    if (WIFSIGNALED(status)) {
      std::printf(" was ended by signal %d\n", WTERMSIG(status));
      continue;
    }
    std::printf(":\n");
    print_indented(
        store->get_text("output of " + std::to_string(process), tutti::Deadline::after(1s)));
  }
  std::filesystem::remove_all(directory);
  std::printf("one process without the others:\n  final loss %.9f\n", train_alone());
}
