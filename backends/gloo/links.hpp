#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <tutti/deadline.hpp>
#include <tutti/error.hpp>

#include "mesh/event.hpp"
#include "mesh/links.hpp"
#include "mesh/sockets.hpp"

namespace tutti::backend::gloo {

/// The time until `limit` as a timeout of Gloo, to which 0 means 10 ms. Gloo adds it to a clock,
/// which must not overflow.
std::chrono::milliseconds timeout_of(Deadline limit);

/// The connections of Gloo's transport from one rank to all others, for mesh::LinkedMesh. Gloo's
/// I/O thread makes the progress. Called from any thread.
class Links {
 public:
  using Outcome = mesh::Links::Outcome;
  struct Request : mesh::Links::Request {
    std::unique_ptr<::gloo::transport::UnboundBuffer> buffer{};
    std::optional<Outcome> end{};  ///< If it could not be posted.
  };
  static constexpr bool wakes_a_thread = true;

  /// `context`: connected. `sockets`: by rank, duplicates of Gloo's. `ended(peer)`: called by
  /// attend() when the connection to a peer has ended.
  Links(std::shared_ptr<::gloo::transport::Context> context, std::vector<mesh::Socket> sockets,
        std::function<void(int peer)> ended);

  void send(Request& request, int peer, std::uint64_t slot, void* data, std::size_t bytes, bool);
  /// Gloo reports no length. A longer message ends the connection.
  void recv(Request& request, int peer, std::uint64_t slot, void* data, std::size_t bytes);
  Outcome wait(Request& request, Deadline limit, const std::atomic<bool>& cancelled);
  void cancel(Request& request) noexcept;
  /// Gloo keeps a posted message: if it is destroyed without a successful wait(), and the peer then
  /// posts its side, the connection stops. The caller therefore has to fail the mesh, unless a peer
  /// refused the call.
  bool withdraw(Request&) noexcept { return true; }
  bool end_refused(std::uint64_t call, std::span<const int> peers, Deadline limit);
  bool has_arrived(int peer, std::uint64_t slot);

  void alert() noexcept {}
  void interrupt() noexcept { event_.set(); }
  /// Gloo reports the end of a connection only to calls that wait for that peer. Called by one
  /// thread.
  void attend(std::chrono::milliseconds time);
  std::optional<Error> fault() { return std::nullopt; }
  std::optional<int> unreceived() { return std::nullopt; }
  void flush(Deadline) noexcept { mesh::drain(descriptors_); }
  /// Ends the connections in both directions. Gloo's thread then fails the requests that wait.
  void close() noexcept;

 private:
  template <typename Post>
  void post(Request& request, int peer, void* data, std::size_t bytes, const Post& post);

  std::shared_ptr<::gloo::transport::Context> context_;
  std::vector<mesh::Socket> sockets_;
  std::vector<int> descriptors_;  // Of the sockets; -1 for this rank.
  std::function<void(int peer)> ended_;
  mesh::Event event_;
  std::vector<pollfd> events_;  // The event's, then by rank; without the ended ones.
  std::mutex buffers_mutex_;    // Held to set Request::buffer.
};

}  // namespace tutti::backend::gloo
