#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "channel.hpp"
#include "failure.hpp"

namespace tutti::backend::nccl {

/// The messages of a rank to itself. Each is a copy, made when both sides have been posted.
///
/// Called from any thread. `mutex_` guards all data; EventState's lock is taken under it.
class SelfMailbox {
 public:
  explicit SelfMailbox(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)), stream_(gpu_) {}
  void post(Message message);
  cudaStream_t stream() const noexcept { return stream_.get(); }

 private:
  void copy(Message& send, Message& recv);

  std::shared_ptr<Gpu> gpu_;
  std::mutex mutex_;
  CudaStream stream_;
  std::map<int, std::deque<Message>> waiting_;  // By tag; a queue has only sends or only receives.
};

/// The sends and receives of a group: a Channel for each direction, peer and tag, and a
/// SelfMailbox.
///
/// Called from any thread. `mutex_` guards channels_; Failure's lock is taken under it.
class PointToPoint {
 public:
  /// The arguments outlive it.
  PointToPoint(std::shared_ptr<Gpu> gpu, Store& store, Memory& memory, int rank,
               const Failure& failure);
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  /// Posts a send or receive, ordered after the work on Call::stream, and queues it as far as
  /// possible without blocking. @throws Error.
  void post(const std::shared_ptr<EventState>& state);
  /// Queues messages without blocking. True when none waits. @throws Error when a channel has
  /// failed.
  bool advance();
  /// Gives up the turn on the device after an abort.
  void give_up() noexcept;

  std::vector<cudaStream_t> streams() const;
  Communicators communicators() const;

 private:
  std::shared_ptr<Channel> channel(const Op& op);
  std::vector<std::shared_ptr<Channel>> channels() const;

  std::shared_ptr<Gpu> gpu_;
  Store& store_;
  Memory& memory_;
  int rank_;
  const Failure& failure_;
  SelfMailbox self_;
  mutable std::mutex mutex_;
  std::map<std::tuple<bool, int, int>, std::shared_ptr<Channel>> channels_;  // Sends, peer, tag.
};

}  // namespace tutti::backend::nccl
