// Provokes errors and prints their texts on each rank. docs/errors.md shows the output.

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <latch>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/tutti.hpp>

namespace {

using namespace std::chrono_literals;
using tutti::CallOptions;
using tutti::ProcessGroup;
using tutti::ReduceOp;

tutti::GroupOptions options(int rank, int size, std::shared_ptr<tutti::Store> store) {
  return {.backend = "local",
          .store = std::move(store),
          .rank = rank,
          .size = size,
          .timeout = 30s,
          .logger = [](tutti::LogLevel, std::string_view) {}};
}

constexpr auto until_others_wait = 500ms;

void print(int rank, const std::vector<std::string>& lines) {
  for (const auto& line : lines) std::printf("rank %d: %s\n", rank, line.c_str());
}

/// Runs `call` and returns the text of its error.
std::string text_of(const std::function<void()>& call) {
  try {
    call();
    return "no error";
  } catch (const tutti::Error& error) {
    return error.what();
  }
}

/// Runs `body` on three ranks and prints their lines in rank order. Every group lives until all
/// ranks have run `body`.
using Lines = std::vector<std::string>;
void on_ranks(const std::function<void(ProcessGroup& group, Lines& lines)>& body) {
  constexpr int size = 3;
  const auto store = tutti::make_memory_store();
  std::vector<Lines> lines(size);
  std::latch all_ran(size);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < size; ++rank)
      ranks.emplace_back([&, rank] {
        auto group = ProcessGroup::create(options(rank, size, store));
        group.barrier();  // All ranks have joined, so none is late by accident.
        body(group, lines[static_cast<std::size_t>(rank)]);
        all_ran.arrive_and_wait();
      });
  }
  for (int rank = 0; rank < size; ++rank) print(rank, lines[static_cast<std::size_t>(rank)]);
}

/// One rank makes an invalid call.
void refused() {
  on_ranks([](ProcessGroup& group, Lines& lines) {
    std::vector<float> x(4);
    const int root = group.rank() == 1 ? 3 : 0;
    lines.push_back(text_of([&] { group.broadcast(x, root); }));
    lines.push_back(text_of([&] { group.broadcast(x, 0); }));
  });
}

/// Every rank makes a valid call, but the calls differ.
void mismatch() {
  on_ranks([](ProcessGroup& group, Lines& lines) {
    std::vector<float> x(4);
    const auto op = group.rank() == 2 ? ReduceOp::max : ReduceOp::sum;
    lines.push_back(text_of([&] { group.all_reduce(x, op, {.name = "loss"}); }));
    lines.push_back(text_of([&] { group.all_reduce(x); }));
  });
}

/// One rank makes no call.
void timeout() {
  on_ranks([](ProcessGroup& group, Lines& lines) {
    std::vector<float> x(4);
    if (group.rank() == 1) return;
    lines.push_back(text_of([&] { group.all_reduce(x, ReduceOp::sum, {.deadline = 1s}); }));
    lines.push_back(text_of([&] { group.all_reduce(x); }));
  });
}

/// A rank's group ends while the other ranks wait for the rank.
void peer_lost() {
  on_ranks([](ProcessGroup& group, Lines& lines) {
    std::vector<float> x(4);
    if (group.rank() == 1) {
      std::this_thread::sleep_for(until_others_wait);
      const ProcessGroup gone = std::move(group);
      return;
    }
    lines.push_back(text_of([&] { group.all_reduce(x); }));
  });
}

/// A rank aborts while the other ranks wait for it.
void aborted() {
  on_ranks([](ProcessGroup& group, Lines& lines) {
    if (group.rank() == 1) {
      std::this_thread::sleep_for(until_others_wait);
      group.abort("the data set ended early");
    } else {
      lines.push_back(text_of([&] { group.barrier(); }));
    }
    lines.push_back(text_of([&] { group.barrier(); }));
  });
}

/// A Work fails, and rank 0 does not collect its error.
void uncollected() {
  on_ranks([](ProcessGroup& group, Lines& lines) {
    std::vector<float> x(4);
    const int root = group.rank() == 1 ? 3 : 0;
    if (group.rank() == 0) {
      const tutti::Work forgotten = group.broadcast_async(x, root);
      std::this_thread::sleep_for(until_others_wait);
    } else {
      lines.push_back(text_of([&] { group.broadcast(x, root); }));
    }
    lines.push_back(text_of([&] { group.barrier(); }));
    lines.push_back(text_of([&] { group.barrier(); }));
  });
}

/// A send and a recv that do not match, and a recv without a send.
void messages() {
  on_ranks([](ProcessGroup& group, Lines& lines) {
    std::vector<float> x(group.rank() == 0 ? 4 : 3);
    if (group.rank() == 0) lines.push_back(text_of([&] { group.send(x, 1); }));
    if (group.rank() == 1) lines.push_back(text_of([&] { group.recv(x, 0); }));
    group.barrier();
    if (group.rank() == 2)
      lines.push_back(text_of([&] { group.recv(x, 0, 7, {.deadline = 100ms}); }));
  });
}

/// Prints the trace of a rank's calls.
void trace() {
  on_ranks([](ProcessGroup& group, Lines& lines) {
    std::vector<float> x(4);
    const int root = group.rank() == 1 ? 3 : 0;
    (void)text_of([&] { group.broadcast(x, root, {.name = "weights"}); });
    group.all_reduce(x, ReduceOp::max);
    if (group.rank() == 0) group.send(x, 1, 5);
    if (group.rank() == 1) group.recv(x, 0, 5);
    for (const auto& entry : group.trace()) lines.push_back(to_string(entry));
  });
}

/// A child process uses a copy of its parent's group.
void forked() {
  auto group = ProcessGroup::create(options(0, 1, nullptr));
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    std::printf("child: %s\n", text_of([&] { group.barrier(); }).c_str());
    auto own = ProcessGroup::create(options(0, 1, nullptr));
    std::printf("child, a new group: %s\n", text_of([&] { own.barrier(); }).c_str());
    std::fflush(stdout);
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  std::printf("parent: %s\n", text_of([&] { group.barrier(); }).c_str());
}

/// No launcher has started this process.
class NoLauncher final : public tutti::ClusterEnvironment {
 public:
  std::optional<tutti::ClusterInfo> detect() const override { return std::nullopt; }
};

/// A single rank makes invalid calls.
void alone() {
  auto group = ProcessGroup::create(options(0, 1, nullptr));
  std::vector<float> x(4);
  std::vector<int> counts(4);
  constexpr auto huge = std::numeric_limits<std::int64_t>::max() / 2;
  const std::vector<std::function<void()>> wrong{
      [&] {
        group.all_reduce(tutti::TensorView(nullptr, tutti::DType::f32, {2, 2}));
      },
      [&] { group.all_reduce(counts, ReduceOp::avg); },
      [&] { group.send(x, 1); },
      [&] { group.all_reduce(tutti::TensorView(x.data(), tutti::DType::f32, {huge})); },
      [&] { (void)ProcessGroup::create({.backend = "local", .size = 2}); },
      [&] { (void)ProcessGroup::create({.backend = "local", .rank = 4, .size = 4}); },
      [&] {
        group.all_reduce(tutti::TensorView(x.data(), tutti::DType::f32, {4},
                                           {.type = tutti::DeviceType::cuda, .index = 1}));
      },
      [&] { (void)tutti::init({.environment = std::make_shared<NoLauncher>()}); },
      [&] { tutti::Tensor(tutti::host_memory(), {huge}, tutti::DType::u8); },
  };
  for (const auto& call : wrong) std::printf("%s\n", text_of(call).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string_view, void (*)()> cases{
      {"refused", refused},     {"mismatch", mismatch}, {"timeout", timeout},
      {"peer_lost", peer_lost}, {"aborted", aborted},   {"uncollected", uncollected},
      {"messages", messages},   {"trace", trace},       {"forked", forked},
      {"alone", alone}};
  const auto chosen = argc == 2 ? cases.find(argv[1]) : cases.end();
  if (chosen == cases.end()) {
    std::fprintf(stderr, "usage: errors CASE; CASE is one of");
    for (const auto& [name, run] : cases) std::fprintf(stderr, " %s", name.data());
    std::fprintf(stderr, "\n");
    return 2;
  }
  chosen->second();
}
