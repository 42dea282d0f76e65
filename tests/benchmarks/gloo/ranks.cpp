#include "ranks.hpp"

#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace tutti::bench {

Ranks::Ranks(Shared& shared, int rank, int size, std::string directory)
    : shared_(shared), rank_(rank), size_(size), directory_(std::move(directory)) {}

void Ranks::meet() {
  const auto next = ++phase_;
  if (shared_.arrived.fetch_add(1) + 1 == static_cast<unsigned>(size_)) {
    shared_.arrived = 0;
    shared_.phase = next;
  }
  while (shared_.phase.load() != next) {
    if (shared_.failed) throw std::runtime_error("another rank has failed");
    sched_yield();
  }
}

double Ranks::largest(double mine) {
  shared_.values[rank_] = mine;
  meet();
  const auto result = *std::max_element(shared_.values, shared_.values + size_);
  meet();  // Nobody writes the next one before all have read.
  return result;
}

std::unique_ptr<Bare> Ranks::connect_bare() {
  const auto place = fmt::format("{}/{}", directory_, connected_++);
  std::filesystem::create_directories(place);
  meet();
  return std::make_unique<Bare>(rank_, size_, place);
}

ProcessGroup Ranks::connect_tutti() {
  const auto place = fmt::format("{}/{}", directory_, connected_++);
  std::filesystem::create_directories(place);
  meet();
  return ProcessGroup::create({.backend = "gloo:=lo",
                               .store = make_file_store(place),
                               .rank = rank_,
                               .size = size_,
                               .timeout = std::chrono::minutes(1)});
}

int run_ranks(int size, const std::function<void(Ranks&)>& body) {
  auto directory = (std::filesystem::temp_directory_path() / "gloo_bench.XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) throw std::runtime_error("no temporary directory");
  void* page = mmap(nullptr, sizeof(Ranks::Shared), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::bad_alloc();
  auto& shared = *new (page) Ranks::Shared;

  std::fflush(stdout);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const auto child = fork();
    if (child > 0) children.push_back(child);
    if (child < 0) shared.failed = true;
    if (child != 0) continue;
    int status = 0;
    try {
      Ranks ranks(shared, rank, size, directory);
      body(ranks);
    } catch (const std::exception& error) {
      shared.failed = true;
      std::fprintf(stderr, "gloo_bench: rank %d: %s\n", rank, error.what());
      status = 1;
    }
    std::fflush(stdout);
    _exit(status);
  }
  int failed = size - static_cast<int>(children.size());
  for (const auto child : children) {
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) {
      shared.failed = true;
      ++failed;
    }
  }
  munmap(page, sizeof(Ranks::Shared));
  std::filesystem::remove_all(directory);
  return failed;
}

}  // namespace tutti::bench
