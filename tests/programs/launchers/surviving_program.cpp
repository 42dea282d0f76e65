// A user's program whose rank 0 is killed in a call. The other ranks go on in a group of their own,
// over the same store, or over files in the folder that is the argument.
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include <tutti/tutti.hpp>

int main(int argc, char** argv) try {
  auto group = tutti::init({.group = {.backend = "gloo", .timeout = std::chrono::seconds(60)}});
  std::vector<std::int64_t> sum(1000);
  try {
    for (int call = 0;; ++call) {
      if (group.rank() == 0 && call == 10) (void)::raise(SIGKILL);
      group.all_reduce(sum);
    }
  } catch (const tutti::Error& error) {
    if (error.code() != tutti::Errc::peer_lost || error.where().rank != 0) throw;
    group = argc == 1 ? group.shrink()
                      : tutti::ProcessGroup::create({.backend = "gloo",
                                                     .store = tutti::make_file_store(argv[1]),
                                                     .rank = group.rank() - 1,
                                                     .size = group.size() - 1});
  }
  const std::int64_t size = group.size();
  sum.assign(sum.size(), group.rank() + 1);
  group.all_reduce(sum);
  if (sum != std::vector<std::int64_t>(sum.size(), size * (size + 1) / 2)) {
    std::fprintf(stderr, "wrong sums\n");
    return 1;
  }
  group.barrier();
  std::printf("rank %d of %d: ok\n", group.rank(), group.size());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
