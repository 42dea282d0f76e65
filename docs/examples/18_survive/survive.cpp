// Four processes train a network, and one is killed in the middle of a step. The other three go on
// as a smaller group.

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
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <tutti/training.hpp>

#include "../15_ddp_mlp/mlp.hpp"

namespace {

using namespace std::chrono_literals;

constexpr int processes = 4;
constexpr int killed = 1;
constexpr int killed_in_step = 100;
constexpr int steps = 300;
constexpr double rate = 0.5;

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
  auto group = tutti::ProcessGroup::create({
      .backend = "gloo",
      .store = store,
      .rank = me,
      .size = processes,
      .timeout = 30s,
      .logger = [](tutti::LogLevel, std::string_view) {},  // The broken group is expected.
  });
  tutti::ddp::GradientReducer reducer(group, network.parameters(),
                                      {.first_bucket_cap = 256, .divisor = 1});
  bool lost_a_peer = false;
  for (int step = 0; step < steps;) {
    try {
      if (std::exchange(lost_a_peer, false)) {
        // Rank 0 gives its parameters and its step: another rank may have ended one more.
        reducer.set_group(group);
        group.broadcast(std::span(&step, 1), 0);
        lines += "rank " + std::to_string(group.rank()) + " of " + std::to_string(group.size()) +
                 " from step " + std::to_string(step) + " on\n";
      }
      const auto mine = mlp::part_of_batch(data, step, group);
      network.backward(mine, 1.0 / mlp::rows_of_batch, [&](std::size_t id) {
        reducer.mark_ready(id, network.gradient(id));
        if (me == killed && step == killed_in_step && id == 1) ::raise(SIGKILL);
      });
      reducer.finish();
      network.update(rate);
      ++step;
    } catch (const tutti::Error& error) {
      if (error.code() != tutti::Errc::peer_lost && error.code() != tutti::Errc::aborted) throw;
      lines += "lost a peer in step " + std::to_string(step) + "\n";
      group = group.shrink();
      lost_a_peer = true;
    }
  }
  lines += has_parameters_of_rank_0(group, network) ? "the parameters are those of rank 0\n"
                                                    : "the parameters differ from rank 0's\n";
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
