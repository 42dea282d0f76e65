#pragma once

#include <pthread.h>

#include <functional>
#include <memory>
#include <string>

#include <tutti/process_group.hpp>

#include "bare.hpp"

namespace tutti::bench {

/// The processes of one measurement, seen from one of them: what they share, and the two transports
/// side by side over the same interface.
class Ranks {
 public:
  static constexpr int max_size = 16;
  /// On a page that all processes see.
  struct Shared {
    pthread_barrier_t barrier;
    double values[max_size] = {};
  };

  Ranks(Shared& shared, int rank, int size, std::string directory);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// Returns when all processes have come. Uses neither transport. Sleeps: a thread that has been
  /// yielding in a loop is the last to run again on a busy machine.
  void meet();
  /// The largest of what the processes bring.
  double largest(double mine);

  /// New connections; collective.
  std::unique_ptr<Bare> connect_bare();
  ProcessGroup connect_tutti();

 private:
  Shared& shared_;
  int rank_;
  int size_;
  std::string directory_;
  int connected_ = 0;
};

/// Forks `size` processes, each runs `body`. When one fails the others are killed. Returns the
/// number of those that did not end well.
int run_ranks(int size, const std::function<void(Ranks&)>& body);

}  // namespace tutti::bench
