#pragma once

#include <functional>
#include <memory>
#include <string>

#include <tutti/backend/backend_table.hpp>

#include "links.hpp"

namespace tutti::backend::tcp {

struct Connections {
  std::shared_ptr<Links> links{};
  std::string transport{};  ///< "eth0, 4 connections to ranks of other hosts"
  int server = -1;          ///< The rank that serves the store; -1: none, or unknown.
};

/// Connects all ranks. `ended`: of Links. @throws Error timeout, unsupported (a rank with a
/// loopback address has peers on other hosts), invalid_argument (no such interface;
/// TUTTI_TCP_CONNECTIONS), resource_exhausted; the error of a rank that has given up.
Connections rendezvous(const BackendInit& init, std::function<void(int peer)> ended);

}  // namespace tutti::backend::tcp
