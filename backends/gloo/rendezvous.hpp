#pragma once

#include <memory>
#include <string>

#include <tutti/backend/backend.hpp>
#include <tutti/log.hpp>

#include "interface.hpp"
#include "sockets.hpp"

namespace gloo::transport {
class Context;
class Device;
}  // namespace gloo::transport

namespace tutti::backend::gloo {

struct MeshInit {
  std::shared_ptr<Store> store;  ///< The group's.
  std::string group;
  int rank = 0;
  int size = 1;
  std::string interface;  ///< What choose_interface() takes.
  Deadline limit{};
  Logger logger{};
};

/// A transport context of Gloo whose pairs are connected, and that the right ranks are behind.
struct Connections {
  std::shared_ptr<Store> store;  ///< The part of the group's store that is this mesh's alone.
  Interface interface {};
  std::shared_ptr<::gloo::transport::Device> device{};  ///< Destroyed after the context.
  std::shared_ptr<::gloo::transport::Context> context{};
  Sockets sockets{};
};

/// Meets the other ranks in the store and connects to all of them. Tries again when a stranger
/// took a connection. @throws Error timeout naming the ranks that did not come, invalid_argument
/// for the interface, unsupported when a rank is on another host than one with a loopback address.
Connections rendezvous(const MeshInit& init);

}  // namespace tutti::backend::gloo
