// A store, or a rank (links_test.py).
//   program store ADDRESS
//   program rank RANK SIZE STORE BACKEND DEAD_AFTER     calls and checks its results until it is
//   told to end program check ...                                   checks the results of several
//   calls of all sizes program time ...                                    prints times with four
//   connections and with one

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/process_group.hpp>
#include <tutti/store/store_server.hpp>

namespace {

using namespace std::chrono_literals;
using namespace tutti;

bool is_told_to_end() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return ::poll(&input, 1, 0) > 0;
}

int serve(const std::string& address) {
  const StoreServer server({.host = address});
  std::cout << server.port() << std::endl;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  (void)::poll(&input, 1, -1);
  std::_Exit(0);  // Its clients may be gone without a word.
}

void call(ProcessGroup& group) {
  std::int64_t calls = 0;
  for (std::int32_t end = 0; end == 0; ++calls) {
    std::vector<std::int32_t> data(calls % 16 == 0 ? 1 << 18 : 1 << 10, group.rank() + 1);
    data[0] = is_told_to_end() ? 1 : 0;
    group.all_reduce(data);
    end = data[0];
    const int sum = group.size() * (group.size() + 1) / 2;
    for (const auto value : std::span(data).subspan(1))
      if (value != sum) throw std::runtime_error("a wrong result");
    if (calls == 0) std::cout << "ready" << std::endl;
  }
  std::cout << "ended after " << calls << " calls" << std::endl;
}

std::int32_t value(int rank, std::size_t i) {
  return 1'000'003 * (rank + 1) % 65'537 + static_cast<std::int32_t>(7 * i % 1'000'000);
}

void require(const std::vector<std::int32_t>& data, const char* what, const auto& right) {
  for (std::size_t i = 0; i < data.size(); ++i)
    if (data[i] != right(i))
      throw std::runtime_error(std::string("a wrong result of ") + what + " at " +
                               std::to_string(i) + " of " + std::to_string(data.size()));
}

void check(ProcessGroup& group) {
  std::cout << "ready" << std::endl;
  const int rank = group.rank();
  const int size = group.size();
  const auto ranks = static_cast<std::size_t>(size);
  const auto sum = [&](std::size_t i) {
    std::int32_t all = 0;
    for (int r = 0; r < size; ++r) all += value(r, i);
    return all;
  };
  for (std::size_t bytes = 8; bytes <= std::size_t{16} << 20; bytes *= 2) {
    const auto block = bytes / 4 / ranks + 1;
    std::vector<std::int32_t> in(block * ranks);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = value(rank, i);
    std::vector<std::int32_t> out(in.size());
    std::vector<std::int32_t> own(block);
    group.all_reduce(in, out);
    require(out, "all_reduce", sum);
    group.all_gather(std::span(in).first(block), out);
    require(out, "all_gather",
            [&](std::size_t i) { return value(static_cast<int>(i / block), i % block); });
    group.reduce_scatter(in, own);
    require(own, "reduce_scatter",
            [&](std::size_t i) { return sum(static_cast<std::size_t>(rank) * block + i); });
    group.all_to_all(in, out);
    require(out, "all_to_all", [&](std::size_t i) {
      return value(static_cast<int>(i / block), static_cast<std::size_t>(rank) * block + i % block);
    });
    group.sendrecv(in, (rank + 1) % size, out, (rank + size - 1) % size);
    require(out, "sendrecv", [&](std::size_t i) { return value((rank + size - 1) % size, i); });
    group.broadcast(in, size - 1);
    require(in, "broadcast", [&](std::size_t i) { return value(size - 1, i); });
  }
  std::cout << "right" << std::endl;
}

/// Prints for each size the milliseconds of an all_reduce over four connections and over one, the
/// shortest of some.
void time(GroupOptions options) {
  std::vector<ProcessGroup> groups;
  for (const char* connections : {"4", "1"}) {
    ::setenv("TUTTI_TCP_CONNECTIONS", connections, 1);
    options.name = connections;
    groups.push_back(ProcessGroup::create(options));
  }
  std::cout << "ready" << std::endl;
  for (const std::size_t bytes : {8UL, 1UL << 20, 16UL << 20}) {
    std::vector<float> data(bytes / sizeof(float));
    double shortest[2]{1e9, 1e9};
    for (int turn = 0; turn < 20; ++turn)
      for (const std::size_t i : {0U, 1U}) {
        // Of two calls: the rank that is ahead waits in the first, and the other one in the second.
        const auto begin = std::chrono::steady_clock::now();
        groups[i].all_reduce(data);
        groups[i].all_reduce(data);
        const std::chrono::duration<double, std::milli> both =
            std::chrono::steady_clock::now() - begin;
        shortest[i] = std::min(shortest[i], both.count() / 2);
      }
    std::cout << shortest[0] << ' ' << shortest[1] << std::endl;
  }
}

}  // namespace

int main(int count, char** values) try {
  const std::vector<std::string> arguments(values, values + count);
  const auto& verb = arguments.at(1);
  if (verb == "store") return serve(arguments.at(2));
  GroupOptions options;
  options.rank = std::stoi(arguments.at(2));
  options.size = std::stoi(arguments.at(3));
  options.store = open_store(arguments.at(4));
  options.backend = arguments.at(5);
  options.dead_after = std::chrono::milliseconds(std::stoi(arguments.at(6)));
  options.logger = [](LogLevel level, std::string_view text) {
    if (level <= LogLevel::warning) std::cout << "log " << text << std::endl;
  };
  if (verb == "time") {
    time(options);
    return 0;
  }
  auto group = ProcessGroup::create(options);
  try {
    if (verb == "check")
      check(group);
    else
      call(group);
  } catch (const Error& error) {
    std::cout << "error " << error.where().rank << ' ' << error.what() << std::endl;
    std::_Exit(1);  // The ends of the group may wait for the broken link.
  }
  return 0;
} catch (const std::exception& error) {
  std::cout << "failed: " << error.what() << std::endl;
  return 2;
}
