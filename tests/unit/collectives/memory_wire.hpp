#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/wire.hpp"

namespace tutti::test {

/// Wires between threads with the rules of the real ones: a message is copied when both sides have
/// posted it and not before; sizes must be equal (or fit, for recv_at_most()). Counts the bytes
/// that every rank sends.
class MemoryWires {
 public:
  explicit MemoryWires(int size) : size_(size), sent(static_cast<std::size_t>(size)) {}

  /// Runs body(wire) on one thread per rank; rethrows the first error.
  template <typename Body>
  void run(const Body& body) {
    std::vector<std::thread> threads;
    std::exception_ptr error;
    for (int r = 0; r < size_; ++r)
      threads.emplace_back([&, r] {
        try {
          One wire(*this, r);
          body(wire);
          wire.expect_idle();
        } catch (...) {
          const std::lock_guard lock(mutex_);
          if (!error) error = std::current_exception();
          broken_ = true;
          changed_.notify_all();
        }
      });
    for (auto& thread : threads) thread.join();
    if (error) std::rethrow_exception(error);
    for (const auto& [pair, channel] : channels_)
      if (!channel.sends.empty() || !channel.recvs.empty())
        throw std::runtime_error("a message was sent and not received, or the reverse");
  }

 private:
  struct Message {
    std::byte* data;
    std::size_t bytes;
    bool at_most = false;
    bool done = false;
  };
  using Handle = std::shared_ptr<Message>;
  struct Channel {
    std::deque<Handle> sends;
    std::deque<Handle> recvs;
  };

  class One final : public collectives::Wire {
   public:
    One(MemoryWires& wires, int rank) : wires_(wires), rank_(rank) {}
    int rank() const noexcept override { return rank_; }
    int size() const noexcept override { return wires_.size_; }
    bool wakes_a_thread() const noexcept override { return wires_.wakes_a_thread; }
    void send(int to, const void* data, std::size_t bytes) override {
      const std::lock_guard lock(wires_.mutex_);
      wires_.sent[static_cast<std::size_t>(rank_)] += bytes;
      sends_.push_back(std::make_shared<Message>(
          Message{const_cast<std::byte*>(static_cast<const std::byte*>(data)), bytes}));
      auto& channel = wires_.channels_[{rank_, to}];
      channel.sends.push_back(sends_.back());
      wires_.match(channel);
    }
    void recv(int from, void* data, std::size_t bytes) override { recv(from, data, bytes, false); }
    void recv_at_most(int from, void* data, std::size_t bytes) override {
      recv(from, data, bytes, true);
    }
    void wait_recv() override { wait_first(recvs_); }
    void wait_sends(std::size_t left) override {
      while (sends_.size() > left) wait_first(sends_);
    }
    std::byte* scratch(std::size_t bytes) override {
      scratch_.assign(bytes, std::byte{0xcc});
      return scratch_.data();
    }
    void expect_idle() const {
      if (!sends_.empty() || !recvs_.empty())
        throw std::runtime_error("an algorithm ended before its messages");
    }

   private:
    void recv(int from, void* data, std::size_t bytes, bool at_most) {
      const std::lock_guard lock(wires_.mutex_);
      recvs_.push_back(
          std::make_shared<Message>(Message{static_cast<std::byte*>(data), bytes, at_most}));
      auto& channel = wires_.channels_[{from, rank_}];
      channel.recvs.push_back(recvs_.back());
      wires_.match(channel);
    }
    void wait_first(std::deque<Handle>& queue) {
      std::unique_lock lock(wires_.mutex_);
      if (queue.empty()) throw std::runtime_error("waits for a message that was not posted");
      if (!wires_.changed_.wait_for(lock, std::chrono::seconds(20),
                                    [&] { return queue.front()->done || wires_.broken_; }))
        throw std::runtime_error("deadlock: rank " + std::to_string(rank_) + " waits for ever");
      if (!queue.front()->done) throw std::runtime_error("another rank failed");
      queue.pop_front();
    }

    MemoryWires& wires_;
    int rank_;
    std::deque<Handle> sends_;
    std::deque<Handle> recvs_;
    std::vector<std::byte> scratch_;
  };

  void match(Channel& channel) {
    while (!channel.sends.empty() && !channel.recvs.empty()) {
      const auto from = channel.sends.front();
      const auto to = channel.recvs.front();
      const bool fits = to->at_most
                            ? from->bytes <= to->bytes
                            : from->bytes == to->bytes && (from->bytes != 0 || may_be_empty);
      if (!fits || from->bytes > collectives::max_message)
        throw std::runtime_error("a message of " + std::to_string(from->bytes) +
                                 " bytes meets a receive of " + std::to_string(to->bytes));
      if (from->bytes != 0) std::memcpy(to->data, from->data, from->bytes);
      from->done = to->done = true;
      channel.sends.pop_front();
      channel.recvs.pop_front();
      changed_.notify_all();
    }
  }

  int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, Channel> channels_;
  bool broken_ = false;

 public:
  bool wakes_a_thread = true;
  bool may_be_empty = false;      ///< Messages of recv() may be empty.
  std::vector<std::size_t> sent;  ///< Sent bytes, by rank.
};

}  // namespace tutti::test
