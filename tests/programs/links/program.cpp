// A store, or a rank that calls and checks its results until it is told to end (links_test.py).
//   program store ADDRESS
//   program rank RANK SIZE STORE BACKEND DEAD_AFTER

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/process_group.hpp>
#include <tutti/store/store_server.hpp>

namespace {

using namespace std::chrono_literals;

bool is_told_to_end() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return ::poll(&input, 1, 0) > 0;
}

int serve(const std::string& address) {
  const tutti::StoreServer server({.host = address});
  std::cout << server.port() << std::endl;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  (void)::poll(&input, 1, -1);
  std::_Exit(0);  // Its clients may be gone without a word.
}

void call(tutti::ProcessGroup& group) {
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

}  // namespace

int main(int count, char** values) try {
  const std::vector<std::string> arguments(values, values + count);
  if (arguments.at(1) == "store") return serve(arguments.at(2));
  tutti::GroupOptions options;
  options.rank = std::stoi(arguments.at(2));
  options.size = std::stoi(arguments.at(3));
  options.store = tutti::open_store(arguments.at(4));
  options.backend = arguments.at(5);
  options.dead_after = std::chrono::milliseconds(std::stoi(arguments.at(6)));
  options.logger = [](tutti::LogLevel level, std::string_view text) {
    if (level <= tutti::LogLevel::warning) std::cout << "log " << text << std::endl;
  };
  auto group = tutti::ProcessGroup::create(options);
  try {
    call(group);
  } catch (const tutti::Error& error) {
    std::cout << "error " << error.where().rank << ' ' << error.what() << std::endl;
    std::_Exit(1);  // The ends of the group may wait for the broken link.
  }
  return 0;
} catch (const std::exception& error) {
  std::cout << "failed: " << error.what() << std::endl;
  return 2;
}
