#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <tutti/store/store.hpp>

#include "communicator.hpp"
#include "work.hpp"

namespace tutti::backend::nccl {

/// A posted message: its call, and the event on Call::stream after which its array may be used.
struct Message {
  std::shared_ptr<EventState> state;
  Gpu::Event input;
  void* data;  ///< Only read if the message is a send.
  std::size_t bytes;
};

/// The messages of one (sender, receiver, tag), on one of the two ranks. Has a stream and a
/// communicator of the two ranks, which connect at the first message. Called from any thread.
class Channel {
 public:
  /// `key`: the store key under which the sender publishes the ncclUniqueId. `sends`: this rank is
  /// the sender.
  Channel(std::shared_ptr<Gpu> gpu, Store& store, std::string key, bool sends, Memory& memory);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  void post(Message message);
  /// Advances the messages without blocking. @throws Error when the channel has failed.
  void advance();
  /// True when no message waits to be queued.
  bool is_idle();
  /// Gives up the turn on the device after an abort.
  void give_up() noexcept;
  cudaStream_t stream() const noexcept { return stream_.get(); }
  const std::shared_ptr<Communicator>& communicator() const noexcept { return communicator_; }

 private:
  enum class Step { idle, connecting, open };
  bool connect();
  bool send_front();

  std::shared_ptr<Gpu> gpu_;
  Store& store_;
  std::string key_;
  bool sends_;
  Memory& memory_;
  std::shared_ptr<Communicator> communicator_;

  std::mutex mutex_;
  Step step_ = Step::idle;
  CudaStream stream_;
  void* token_ =
      nullptr;  // One byte, sent for messages without elements so that they keep their order.
  std::deque<Message> waiting_;
  bool under_way_ = false;  // The first message is passed to NCCL and not yet queued.
  bool connected_ = false;  // By the first message.
  std::optional<Gpu::Turn> turn_;
};

}  // namespace tutti::backend::nccl
