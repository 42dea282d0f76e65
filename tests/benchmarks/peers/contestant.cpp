#include "contestant.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <new>
#include <numeric>
#include <sstream>
#include <stdexcept>

namespace tutti::peers {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool is_step(const std::string& operation) {
  return operation == "step" || operation == "step_views";
}

std::size_t sum(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// The scheduler prefers to run a thread on the core of the thread that woke it. Moves this rank to
/// a core of its own; afterwards it may run anywhere again.
void spread(int rank) {
  cpu_set_t all;
  sched_getaffinity(0, sizeof all, &all);
  int skip = rank % CPU_COUNT(&all);
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all) || skip-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    sched_setaffinity(0, sizeof all, &all);
    return;
  }
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

class Server {
 public:
  Server(const std::string& directory, const Contestant& contestant)
      : contestant_(contestant),
        in_(directory + "/" + std::to_string(contestant.rank) + ".in"),
        out_(directory + "/" + std::to_string(contestant.rank) + ".out") {
    if (!in_ || !out_) throw std::runtime_error("no pipes in " + directory);
  }

  void run() {
    const auto barrier = contestant_.make({"barrier", {0}}, {});
    reply("ready " + contestant_.version);
    for (std::string line; std::getline(in_, line);) {
      std::istringstream words(line);
      Request request;
      std::string counts;
      int calls = 0;
      int warm = 0;
      words >> request.operation >> counts >> calls >> warm;
      std::istringstream numbers(counts);
      for (std::string number; std::getline(numbers, number, ',');)
        request.counts.push_back(std::stoull(number));
      spread(contestant_.rank);
      if (request != request_) prepare(request);
      if (call_)
        measure(barrier, calls, warm);
      else
        reply("none");
    }
  }

  void reply(const std::string& text) { out_ << text << std::endl; }

 private:
  std::span<float> allocate(std::size_t count, Memory& owner) {
    if (contestant_.allocate) return contestant_.allocate(count);
    constexpr std::size_t page = 4096;
    owner.reset(std::aligned_alloc(page, (count * sizeof(float) / page + 1) * page));
    if (owner == nullptr) throw std::bad_alloc();
    return {static_cast<float*>(owner.get()), count};
  }

  void prepare(const Request& request) {
    call_ = nullptr;
    request_ = request;
    const auto& operation = request.operation;
    const auto& counts = request.counts;
    const auto size = static_cast<std::size_t>(contestant_.size);
    const auto rank = static_cast<std::size_t>(contestant_.rank);
    auto in = counts[0];
    std::size_t out = 0;
    if (operation == "all_gather") out = counts[0] * size;
    if (operation == "reduce" || operation == "copy") out = counts[0];
    if (operation == "all_gather_rows") {
      in = counts[rank];
      out = sum(counts);
    }
    if (is_step(operation)) in = sum(counts);
    arrays_ = {allocate(in, in_memory_), allocate(out, out_memory_)};
    std::ranges::fill(arrays_.in, static_cast<float>(rank + 1));
    std::ranges::fill(arrays_.out, 0.0F);
    call_ = contestant_.make(request, arrays_);
    if (!call_) return;
    call_(0);
    check();
    // Sums and means of zeros do not grow from call to call.
    std::ranges::fill(arrays_.in, 0.0F);
  }

  /// @throws std::runtime_error unless the first call has the result of ranks r with elements r
  /// + 1.
  void check() const {
    const auto& operation = request_.operation;
    const auto size = static_cast<std::size_t>(contestant_.size);
    const auto total = static_cast<float>(size * (size + 1) / 2);
    const auto expect = [&](std::span<const float> values, float value) {
      if (!std::ranges::all_of(values, [value](float x) { return x == value; }))
        throw std::runtime_error(operation + ": a wrong element");
    };
    if (operation == "all_reduce") expect(arrays_.in, total);
    if (operation == "broadcast") expect(arrays_.in, 1.0F);
    if (operation == "reduce" && contestant_.rank == 0) expect(arrays_.out, total);
    if (is_step(operation)) expect(arrays_.in, total / static_cast<float>(size));
    if (operation == "copy") expect(arrays_.out, static_cast<float>(contestant_.rank + 1));
    if (operation == "all_gather" || operation == "all_gather_rows") {
      std::size_t next = 0;
      for (std::size_t r = 0; r < size; ++r) {
        const auto count = request_.counts[operation == "all_gather" ? 0 : r];
        expect(arrays_.out.subspan(next, count), static_cast<float>(r + 1));
        next += count;
      }
    }
  }

  void measure(const Call& barrier, int calls, int warm) {
    auto start = Clock::now();
    for (int i = 0; i < warm; ++i) call_(i);
    // A clock reading would be a part of the time of short calls.
    const bool each = seconds_since(start) > 2e-6 * warm;
    int slow = 0;
    barrier(0);
    start = Clock::now();
    if (each) {
      auto before = start;
      for (int i = 0; i < calls; ++i) {
        call_(i);
        const auto now = Clock::now();
        slow += now - before > std::chrono::milliseconds(1) ? 1 : 0;
        before = now;
      }
    } else {
      for (int i = 0; i < calls; ++i) call_(i);
    }
    const auto mean = seconds_since(start) / calls;
    std::ostringstream answer;
    answer.precision(9);
    answer << mean << ' ' << slow;
    reply(answer.str());
  }

  const Contestant& contestant_;
  std::ifstream in_;
  std::ofstream out_;
  Memory in_memory_;
  Memory out_memory_;
  Arrays arrays_;
  Request request_;
  Call call_;
};

}  // namespace

int serve(const std::string& directory, const Contestant& contestant) {
  try {
    Server server(directory, contestant);
    try {
      server.run();
    } catch (const std::exception& error) {
      server.reply(std::string("error ") + error.what());
      throw;
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", contestant.rank, error.what());
    return 1;
  }
}

}  // namespace tutti::peers
