#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <tutti/store/store.hpp>

namespace tutti::internal {

/// The hosts of a group's ranks (values/host_identity.hpp): every rank publishes its own before it
/// makes its backend, and reads those of the others when the program asks. From any thread.
class RankHosts {
 public:
  /// Publishes the host of `rank`, unless all ranks are in this process.
  RankHosts(std::shared_ptr<Store> store, std::string group, int rank, int size);

  /// The number of each rank's host. @throws Error of the store.
  const std::vector<int>& numbers();

 private:
  std::shared_ptr<Store> store_;
  std::string group_;
  int size_;
  std::mutex mutex_;
  std::vector<int> numbers_;
};

}  // namespace tutti::internal
