#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "mesh/mesh.hpp"
#include "rendezvous.hpp"

namespace tutti::backend::ucx {

/// The connections of UCX between all ranks of a group.
class Mesh final : public mesh::Mesh {
 public:
  /// The peers whose connections have ended; filled by any thread.
  class Ended;

  Mesh(const MeshInit& init, Connections made, std::shared_ptr<Ended> ended);  ///< For make_mesh().
  /// Leaves the group: sent messages arrive, then the connections end.
  ~Mesh() override;

  std::string transport() const override { return transport_; }
  bool wakes_a_thread() const noexcept override { return false; }
  std::shared_ptr<mesh::Message> message(std::pmr::memory_resource& pool, int peer, void* data,
                                         std::size_t bytes, const mesh::MessageCall& call) override;
  bool is_sent(int peer, std::uint64_t slot) override;
  bool end_refused(std::uint64_t call, std::span<const int> peers, Deadline limit) override;
  void attend() noexcept override { worker_->alert(); }

  void watch(const std::weak_ptr<Mesh>& self);  ///< For make_mesh().

 private:
  class Message;
  struct Stop {
    std::atomic<bool> requested{false};
  };
  void stop(const Error& why) noexcept override;
  void look_for_ends() noexcept;

  std::vector<Process> processes_;  // By rank, if the transports do not report their ends.
  std::shared_ptr<Worker> worker_;
  std::string transport_;
  std::shared_ptr<Ended> ended_;
  std::shared_ptr<Stop> stop_ = std::make_shared<Stop>();  // Shared with the thread.
  std::thread watcher_;
};

/// Connects all ranks. Errors are those of rendezvous(), and resource_exhausted.
std::shared_ptr<mesh::Mesh> make_mesh(const MeshInit& init);

}  // namespace tutti::backend::ucx
