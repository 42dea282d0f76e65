#pragma once

#include <memory>
#include <string>

#include <tutti/backend/backend_table.hpp>

#include "mesh/interface.hpp"
#include "sockets.hpp"

namespace gloo::transport {
class Context;
class Device;
}  // namespace gloo::transport

namespace tutti::backend::gloo {

/// Settings of the connections. Each has an environment variable (docs/environment.md).
struct Settings {
  bool batch = true;  ///< Gloo's I/O thread has the scheduling policy SCHED_BATCH.
  bool reno = true;   ///< Connections within this host use the congestion control reno.
};

struct MeshInit {
  const BackendInit& group;
  Settings settings{};
};

/// A transport context of Gloo whose pairs are connected to authenticated peers.
struct Connections {
  mesh::Interface interface {};
  std::shared_ptr<::gloo::transport::Device> device{};  ///< Destroyed after the context.
  std::shared_ptr<::gloo::transport::Context> context{};
  Sockets sockets{};
  int server = -1;  ///< The rank that serves the store; -1: none, or unknown.
};

/// Finds the other ranks through the store and connects to all of them. Tries again when an
/// unauthenticated peer took a connection. @throws Error timeout; its text names the missing ranks.
/// Error invalid_argument: no such interface. Error unsupported: a rank with a loopback address has
/// peers on other hosts. Error backend: all attempts to connect failed. The error of a rank that
/// has given up.
Connections rendezvous(const MeshInit& init);

}  // namespace tutti::backend::gloo
