#pragma once

#include <chrono>
#include <exception>
#include <memory>

#include <tutti/store/store.hpp>
#include <tutti/store/store_server.hpp>

namespace tutti::internal {

/// A store's server and this process's connection to it. The destructor waits until the other ranks
/// have left: 10 seconds at most, 1 second while an exception unwinds the stack.
struct HostedStore {
  std::unique_ptr<StoreServer> server{};
  std::shared_ptr<Store> client{};
  int unwinding = std::uncaught_exceptions();

  HostedStore() = default;
  HostedStore(const HostedStore&) = delete;
  HostedStore& operator=(const HostedStore&) = delete;
  ~HostedStore() {
    client.reset();
    if (server == nullptr) return;
    const bool unwinds = std::uncaught_exceptions() > unwinding;
    server->wait_until_left(std::chrono::seconds(unwinds ? 1 : 10));
  }
};

}  // namespace tutti::internal
