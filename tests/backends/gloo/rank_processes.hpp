#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tutti/process_group.hpp>
#include <tutti/store/store_server.hpp>

#include "support/resources.hpp"

// Ranks that are processes, so that one can be stopped or killed, and has descriptors, threads and
// memory of its own. Each checks its own results with EXPECT and ASSERT as any test does.

namespace tutti::test {

using namespace std::chrono_literals;

/// The backend of these tests: TUTTI_TEST_BACKEND, or else gloo.
std::string tested_backend();

/// One rank of such a test, with a store.
class RankProcess {
 public:
  RankProcess(int rank, int size, const std::string& directory);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  bool last() const noexcept { return rank_ == size_ - 1; }
  Store& store() noexcept { return *store_; }
  /// The store at first: files that no rank serves.
  const std::shared_ptr<Store>& files() const noexcept { return files_; }

  /// Switches to a store server in rank 0, at this address of rank 0.
  void use_tcp(const std::string& host = "127.0.0.1", const StoreToken& token = {});

  /// Options over tested_backend(); the group's name is its own in the test.
  GroupOptions options(const std::string& name) const;
  ProcessGroup make_group(const std::string& name) const;

  /// Blocks until `count` ranks have called it (0: all). Uses no group.
  void barrier(int count = 0);
  pid_t process(int rank);

  /// Moves two ranks into network namespaces of their own, which end with them and are joined by a
  /// link: 10.99.0.1 and 10.99.0.2. `rate`: its limit in the syntax of tc; empty for none. False if
  /// that is not permitted here.
  bool enter_own_network(const std::string& rate = "");

 private:
  int rank_;
  int size_;
  std::shared_ptr<Store> files_;
  std::shared_ptr<Store> store_;
  std::unique_ptr<StoreServer> server_;
  int barriers_ = 0;
};

struct Processes {
  int size = 2;
  int dies = -1;  ///< This rank does not end by itself.
  std::chrono::seconds limit = 60s;
};

/// Forks a process for each rank and waits for all. An exception, a failed EXPECT and an end by a
/// signal are failures of the test. Returns the result of each rank.
std::vector<std::string> on_processes(const Processes& how,
                                      const std::function<std::string(RankProcess& rank)>& body);

/// Blocks until the process is stopped by a signal.
void wait_until_stopped(pid_t process);

}  // namespace tutti::test
