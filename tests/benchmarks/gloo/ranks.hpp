#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tutti/process_group.hpp>

#include "bare.hpp"

namespace tutti::bench {

/// The settings of gloo that an environment variable switches off.
struct Settings {
  bool batch = true;
  bool reno = true;
};

/// The processes of one measurement, as one of them sees them: shared memory, and two transports
/// over the same interface.
class Ranks {
 public:
  static constexpr int max_size = 16;
  /// On a page that all processes share.
  struct Shared {
    pthread_barrier_t barrier;
    double values[max_size] = {};
  };

  Ranks(Shared& shared, int rank, int size, std::string directory);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// Returns when all processes have called it. Uses neither transport. Sleeps, because a busy
  /// machine schedules a thread that yields in a loop last.
  void meet();
  /// The maximum over the processes.
  double largest(double mine);

  /// Makes new connections; collective.
  std::unique_ptr<Bare> connect_bare();
  ProcessGroup connect_tutti(const Settings& settings = {});

 private:
  Shared& shared_;
  int rank_;
  int size_;
  std::string directory_;
  int connected_ = 0;
};

/// Processes that compute for as long as this object lives.
class Load {
 public:
  explicit Load(int processes);
  ~Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

 private:
  std::vector<pid_t> processes_;
};

/// Forks `size` processes, each of which runs `body`. If one fails, the others are killed. Returns
/// the number that failed.
int run_ranks(int size, const std::function<void(Ranks&)>& body);

}  // namespace tutti::bench
