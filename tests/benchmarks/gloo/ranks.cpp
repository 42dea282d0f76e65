#include "ranks.hpp"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <new>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace tutti::bench {

Ranks::Ranks(Shared& shared, int rank, int size, std::string directory)
    : shared_(shared), rank_(rank), size_(size), directory_(std::move(directory)) {}

void Ranks::meet() {
  pthread_barrier_wait(&shared_.barrier);
}

double Ranks::largest(double mine) {
  shared_.values[rank_] = mine;
  meet();
  const auto result = *std::max_element(shared_.values, shared_.values + size_);
  meet();  // All ranks have read before the next value is written.
  return result;
}

std::unique_ptr<Bare> Ranks::connect_bare() {
  const auto place = fmt::format("{}/{}", directory_, connected_++);
  std::filesystem::create_directories(place);
  meet();
  return std::make_unique<Bare>(rank_, size_, place);
}

ProcessGroup Ranks::connect_tutti(const Settings& settings) {
  setenv("TUTTI_GLOO_BATCH", settings.batch ? "1" : "0", 1);
  setenv("TUTTI_GLOO_RENO", settings.reno ? "1" : "0", 1);
  const auto place = fmt::format("{}/{}", directory_, connected_++);
  std::filesystem::create_directories(place);
  meet();
  return ProcessGroup::create({.backend = "gloo:=lo",
                               .store = make_file_store(place),
                               .rank = rank_,
                               .size = size_,
                               .timeout = std::chrono::minutes(1)});
}

Load::Load(int processes) {
  for (int i = 0; i < processes; ++i) {
    const auto child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (volatile unsigned sum = 0;;) sum = sum + 1;
    }
    if (child > 0) processes_.push_back(child);
  }
}

Load::~Load() {
  for (const auto process : processes_) {
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }
}

namespace {

int run_rank(Ranks::Shared& shared, int rank, int size, const std::string& directory,
             const std::function<void(Ranks&)>& body) {
  int status = 0;
  try {
    Ranks ranks(shared, rank, size, directory);
    body(ranks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_bench: rank %d: %s\n", rank, error.what());
    status = 1;
  }
  std::fflush(stdout);
  return status;
}

}  // namespace

int run_ranks(int size, const std::function<void(Ranks&)>& body) {
  auto directory = (std::filesystem::temp_directory_path() / "gloo_bench.XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) throw std::runtime_error("no temporary directory");
  void* page = mmap(nullptr, sizeof(Ranks::Shared), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::bad_alloc();
  auto& shared = *new (page) Ranks::Shared;

  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared.barrier, &attributes, static_cast<unsigned>(size));
  pthread_barrierattr_destroy(&attributes);

  std::fflush(stdout);
  std::set<pid_t> children;
  int failed = 0;
  const auto one_failed = [&] {
    if (failed++ != 0) return;
    for (const auto child : children) kill(child, SIGKILL);
  };
  for (int rank = 0; rank < size && failed == 0; ++rank) {
    const auto child = fork();
    if (child == 0) _exit(run_rank(shared, rank, size, directory, body));
    if (child > 0)
      children.insert(child);
    else
      one_failed();
  }
  while (!children.empty()) {
    int status = 0;
    const auto child = waitpid(-1, &status, 0);
    if (children.erase(child) != 0 && status != 0) one_failed();
  }
  munmap(page, sizeof(Ranks::Shared));
  std::filesystem::remove_all(directory);
  return failed;
}

}  // namespace tutti::bench
