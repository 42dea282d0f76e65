// A program whose ranks hang or fail in the way that its argument names, for diagnose_test.py.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string_view>
#include <vector>

#include <tutti/tutti.hpp>

int main(int argc, char** argv) try {
  const std::string_view what = argc > 1 ? argv[1] : "";
  auto group = tutti::init({.group = {.backend = "shm", .timeout = std::chrono::seconds(60)}});
  std::vector<float> data(4);
  group.barrier();
  group.all_reduce(data);
  const bool other = group.rank() == 1;
  if (what == "late" && other) ::pause();
  if (what == "message" && group.rank() == 0) group.recv(data, 1);
  if (what == "differ" && other)
    group.broadcast(data, 0);
  else
    group.all_reduce(data);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
