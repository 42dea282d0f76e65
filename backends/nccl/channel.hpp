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

/// A message that has been posted: its call, and the point of Call::stream behind which its array
/// may be used.
struct Message {
  std::shared_ptr<EventState> state;
  Gpu::Event input;
  void* data;  ///< Only read where the message is sent.
  std::size_t bytes;
};

/// The messages of one (sender, receiver, tag), on one of the two: a communicator of two ranks and
/// a stream, made when the first message is posted. Called from any thread.
class Channel {
 public:
  /// `key`: where the two sides meet in the store.
  Channel(std::shared_ptr<Gpu> gpu, Store& store, std::string key, bool sends, Memory& memory);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  void post(Message message);
  /// Does what can be done without blocking. @throws Error what went wrong with the channel.
  void advance();
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
      nullptr;  // Travels for messages without elements, which have a place in order, too.
  std::deque<Message> waiting_;
  bool under_way_ = false;  // NCCL has the front, and has not queued it yet.
};

}  // namespace tutti::backend::nccl
