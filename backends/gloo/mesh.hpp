#pragma once

#include <memory>
#include <mutex>
#include <thread>

#include "connection_watcher.hpp"
#include "mesh/mesh.hpp"
#include "rendezvous.hpp"

namespace tutti::backend::gloo {

/// The connections of Gloo's transport between all ranks of a group.
class Mesh final : public mesh::Mesh {
 public:
  Mesh(const MeshInit& init, Connections made);  ///< For make_mesh().
  /// Leaves the group: sent messages arrive, then the connections end.
  ~Mesh() override;

  std::string transport() const override { return "tcp/" + interface_.name; }
  bool wakes_a_thread() const noexcept override { return true; }
  std::shared_ptr<mesh::Message> message(std::pmr::memory_resource& pool, int peer, void* data,
                                         std::size_t bytes, const mesh::MessageCall& call) override;
  bool is_sent(int peer, std::uint64_t slot) override;
  bool end_refused(std::uint64_t call, std::span<const int> peers, Deadline limit) override;

  void watch(std::weak_ptr<Mesh> self);  ///< For make_mesh().

 private:
  class Message;
  void stop(const Error& why) noexcept override;
  /// The peer of connection i of Sockets.
  int peer_of(std::size_t connection) const noexcept {
    return static_cast<int>(connection) + (static_cast<int>(connection) < rank() ? 0 : 1);
  }

  mesh::Interface interface_;
  std::shared_ptr<::gloo::transport::Device> device_;

  std::mutex connections_mutex_;
  std::shared_ptr<::gloo::transport::Context> context_;  // Null after stop().
  std::shared_ptr<const Sockets> sockets_;
  std::thread reaper_;
  std::unique_ptr<ConnectionWatcher> connection_watcher_;
};

/// Connects all ranks. Errors are those of rendezvous().
std::shared_ptr<mesh::Mesh> make_mesh(const MeshInit& init);

}  // namespace tutti::backend::gloo
