#include "group/rank_hosts.hpp"

#include <utility>

#include <fmt/format.h>

#include "backend/rendezvous.hpp"
#include "store/checks.hpp"
#include "values/fail.hpp"
#include "values/host_identity.hpp"

namespace tutti::internal {
namespace {

std::string key_of(int rank) {
  return fmt::format("hosts/{}", rank);
}

}  // namespace

RankHosts::RankHosts(std::shared_ptr<Store> store, std::string group, int rank, int size)
    : store_(std::move(store)), group_(std::move(group)), size_(size) {
  if (size > 1 && !store_->in_process()) store_->set(key_of(rank), host_of(rank));
}

const std::vector<int>& RankHosts::numbers() {
  const std::lock_guard lock(mutex_);
  if (!numbers_.empty()) return numbers_;
  std::vector<std::string> hosts;
  for (int rank = 0; rank < size_; ++rank) {
    if (size_ == 1 || store_->in_process()) {
      hosts.push_back(host_of(rank));
    } else if (const auto host = store_->try_get(key_of(rank))) {
      hosts.push_back(to_text(*host));
    } else {
      failf(Errc::backend, "group '{}': the store does not answer, or has lost the host of rank {}",
            group_, rank);
    }
  }
  numbers_ = number_hosts(hosts);
  return numbers_;
}

}  // namespace tutti::internal
