// Runs the trainer and checks that embedding tutti has no side effects on the process. With an
// argument, embed_test [VIOLATION], it breaks one promise, and succeeds only if exactly this
// violation is detected.

#include <sys/mman.h>
#include <unistd.h>

#include <barrier>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <tutti/backend/forwarding_backend.hpp>

#include "allocations.hpp"
#include "surroundings.hpp"
#include "trainer.hpp"

namespace {

using Findings = std::set<std::string>;

constexpr int size = 3;
constexpr int warm_up = 50;  // Pools grow to the size of a step.
constexpr int steps = 500;
constexpr int tensors_per_step = 5;
constexpr int launches_per_step = 4;

/// Each violation, and its expected findings.
const std::map<std::string_view, Findings> violations{
    {"none", {}},
    {"allocation_in_backend", {"allocation"}},
    {"allocation_in_library", {"allocation"}},
    {"mapping", {"allocation"}},
    {"stdout", {"output"}},
    {"stderr", {"output"}},
    {"default_logger", {"log", "output"}},
    {"environment", {"allocation", "environment"}},  // setenv() allocates.
    {"signal_action", {"signal action"}},
    {"signal_mask", {"signal mask"}},
    {"other_memory", {"allocation", "memory"}},
    {"other_stream", {"stream"}},
};

void misbehave(std::string_view violation) {
  if (violation == "allocation_in_backend") {
    void* volatile block = std::malloc(1);  // Volatile, so that the compiler keeps both calls.
    std::free(block);
  } else if (violation == "mapping") {
    ::munmap(::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096);
  } else if (violation == "stdout") {
    (void)!::write(STDOUT_FILENO, "hello\n", 6);
  } else if (violation == "stderr") {
    (void)!::write(STDERR_FILENO, "hello\n", 6);
  } else if (violation == "environment") {
    ::setenv("EMBED_TEST_WAS_HERE", "1", 1);
  } else if (violation == "signal_action") {
    std::signal(SIGPIPE, SIG_IGN);
  } else if (violation == "signal_mask") {
    sigset_t mask;
    ::sigemptyset(&mask);
    ::sigaddset(&mask, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  }
}

/// A decorator that observes the calls of the backend, and calls `act` halfway through the run.
class Watcher final : public tutti::ForwardingBackend {
 public:
  Watcher(std::unique_ptr<tutti::Backend> inner, tutti::Stream expected,
          std::atomic<bool>& other_stream, std::function<void()> act)
      : ForwardingBackend(std::move(inner)),
        expected_(expected),
        other_stream_(other_stream),
        act_(std::move(act)) {}

  tutti::Work launch(std::span<const tutti::Op> ops, const tutti::Call& call) override {
    if (call.stream != expected_) other_stream_ = true;
    if (++launches_ == launches_per_step * (warm_up + steps / 2)) act_();
    return inner().launch(ops, call);
  }

 private:
  tutti::Stream expected_;
  std::atomic<bool>& other_stream_;
  std::function<void()> act_;
  std::atomic<int> launches_{0};
};

/// Makes a call fail, which breaks the group. A library is most likely to print on errors.
void fail_on_purpose(tutti::ProcessGroup& group, tutti::Stream stream) {
  std::vector<float> x(group.rank() == 0 ? 1 : 2);
  const auto ignore_error = [](const auto& call) {
    try {
      call();
    } catch (const tutti::Error&) {
    }
  };
  ignore_error([&] { group.all_reduce(x, tutti::ReduceOp::sum, {.stream = stream}); });
  {
    tutti::Coalesce forgotten(group);
    (void)group.all_reduce_async(x, tutti::ReduceOp::sum, {.stream = stream});
  }
  ignore_error([&] { group.barrier({.stream = stream}); });
}

struct Run {
  std::string_view violation{};
  framework::Arena arena{std::size_t{1} << 20};
  std::shared_ptr<framework::KeyValueService> store =
      std::make_shared<framework::KeyValueService>();
  std::array<framework::Journal, size> journals{};
  std::array<int, size> streams{};
  std::barrier<> together{size};
  std::atomic<bool> other_stream{false};
  std::int64_t allocated = 0;
  std::int64_t from_arena = 0;
  std::mutex mutex{};
  Findings findings{};

  void expect(bool holds, const char* otherwise) {
    const std::lock_guard lock(mutex);
    if (!holds) findings.insert(otherwise);
  }
  void train(int rank);
  void run_rank(int rank) {
    const auto mask = signal_mask();
    train(rank);
    expect(signal_mask() == mask, "signal mask");
  }
};

void Run::train(int rank) {
  auto& own_stream = streams[static_cast<std::size_t>(rank)];
  auto& journal = journals[static_cast<std::size_t>(rank)];
  const tutti::Stream stream{&own_stream};
  const bool acts = rank == 1;
  const framework::Services services{
      .arena = violation == "other_memory" ? nullptr : &arena,
      .store = store,
      .logger = violation == "default_logger" ? tutti::Logger{} : journal.logger(),
      .scheduler = std::make_shared<framework::Scheduler>(rank, size),
      .stream = violation == "other_stream" ? tutti::Stream{} : stream};
  framework::Trainer trainer(services, [&](std::unique_ptr<tutti::Backend> inner) {
    return std::make_unique<Watcher>(std::move(inner), stream, other_stream, [this, acts] {
      if (acts) misbehave(violation);
    });
  });
  expect(&trainer.group().memory() == &arena, "memory");

  for (int i = 0; i < warm_up; ++i) trainer.step();
  together.arrive_and_wait();
  if (rank == 0) {
    from_arena = -arena.allocations();
    allocations::start();
  }
  together.arrive_and_wait();
  float sum = 0;
  for (int i = 0; i < steps; ++i) sum += trainer.step();
  if (acts && violation == "allocation_in_library") (void)trainer.group().trace();
  together.arrive_and_wait();
  if (rank == 0) {
    allocated = allocations::stop();
    from_arena += arena.allocations();
  }
  together.arrive_and_wait();

  expect(sum == steps * (size - 1) / 2.0F, "result");
  fail_on_purpose(trainer.group(), services.stream);
  together.arrive_and_wait();
}

Findings watch(std::string_view violation) {
  const auto variables = environment();
  const auto actions = signal_actions();
  const auto mask = signal_mask();
  Capture capture;

  Run run{.violation = violation};
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&run, rank] { run.run_rank(rank); });
  }

  run.expect(capture.end() == 0, "output");
  run.expect(environment() == variables, "environment");
  run.expect(signal_actions() == actions, "signal action");
  run.expect(signal_mask() == mask, "signal mask");
  run.expect(run.allocated == 0, "allocation");
  run.expect(!run.other_stream, "stream");
  const auto expected = violation == "other_memory" ? 0 : steps * tensors_per_step * size;
  run.expect(run.from_arena == expected, "arena");
  for (const auto& journal : run.journals) run.expect(journal.lines().size() >= 2, "log");
  std::printf("%d steps of %d ranks: %lld tensors from the arena, %lld other allocations\n", steps,
              size, static_cast<long long>(run.from_arena), static_cast<long long>(run.allocated));
  return run.findings;
}

std::string to_text(const Findings& findings) {
  std::string all;
  for (const auto& finding : findings) all += (all.empty() ? "" : ", ") + finding;
  return all.empty() ? "nothing" : all;
}

}  // namespace

int main(int argc, char** argv) {
  const auto chosen = violations.find(argc > 1 ? argv[1] : "none");
  if (chosen == violations.end()) {
    std::fprintf(stderr, "usage: embed_test [VIOLATION]; VIOLATION is one of");
    for (const auto& [name, findings] : violations) std::fprintf(stderr, " %s", name.data());
    std::fprintf(stderr, "\n");
    return 2;
  }
  const auto& [violation, expected] = *chosen;
  const auto found = watch(violation);
  std::printf("expected to find %s; found %s\n", to_text(expected).c_str(), to_text(found).c_str());
  return found == expected ? 0 : 1;
}
