#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/host_state.hpp"
#include "stage.hpp"

namespace tutti::backend::cuda {

/// The point on Call::stream at which a call was made.
using StreamPoint = std::shared_ptr<Gpu::Event>;

/// A staged send or receive. Its steps: wait for the stream, copy to the host, transfer between
/// hosts, copy back. Messages advances it from step to step.
class Message final : public internal::HostState {
 public:
  Message(std::shared_ptr<internal::CallQueue> queue, StreamPoint ready, const Op& op,
          const Call& call, Deadline limit);

  const Op& op() const noexcept { return op_; }
  const Call& call() const noexcept { return call_; }
  /// True when the message has been passed to the host's backend.
  bool launched() const noexcept { return step_ >= Step::carried; }
  /// Advances the message as far as possible without blocking. The last step is
  /// HostState::finish(). @throws Error; the message has then not ended.
  void advance(Backend& host, const Staging& staging);

 private:
  enum class Step { waits, to_host, carried, back };

  StreamPoint ready_;
  Op op_;
  std::string name_;
  Call call_;
  Step step_ = Step::waits;
  std::optional<Stage> stage_;
  Work carried_;  // The transfer by the host's backend.
};

/// The messages of a group in flight, and the thread that advances them. A message never waits for
/// a collective or for a message of another peer or tag. Called from any thread.
class Messages {
 public:
  /// Returns the error with which a failed message ends. Called on the thread, without a lock.
  using Failed = std::function<Error(const Error& why, const Message& message)>;

  Messages(Backend& host, const Staging& staging, Failed failed);
  ~Messages() { stop(); }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  void post(std::shared_ptr<Message> message);
  /// Ends the messages in flight with an error, and ends the thread.
  void stop() noexcept;

 private:
  void work();
  /// Advances the messages without blocking. True when one has been launched or has ended.
  bool attend();

  Backend& host_;
  const Staging& staging_;
  Failed failed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Message>> posted_;
  bool stop_ = false;
  // Used only by the thread; in the order of post().
  std::vector<std::shared_ptr<Message>> pending_;
  std::thread thread_;
};

}  // namespace tutti::backend::cuda
