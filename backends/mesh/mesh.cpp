#include "mesh.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace tutti::backend::mesh {

using namespace std::chrono_literals;

namespace {

/// The first and the longest interval between polls of the store for refused calls.
constexpr std::chrono::nanoseconds first_look = 100ms;
constexpr std::chrono::nanoseconds longest_look = 1s;

class MeshOfOne final : public Mesh {
 public:
  MeshOfOne() : Mesh({.store = make_memory_store()}) {}
  std::string transport() const override { return {}; }
  bool wakes_a_thread() const noexcept override { return false; }
  std::shared_ptr<Message> message(std::pmr::memory_resource&, int peer, void*, std::size_t,
                                   std::uint64_t) override {
    throw TransportError(TransportError::Kind::lost, peer);
  }
  bool end_refused(std::uint64_t, std::span<const int>, Deadline) override { return true; }

 private:
  void stop(const Error&) noexcept override {}
};

}  // namespace

std::shared_ptr<Mesh> mesh_of_one() {
  return std::make_shared<MeshOfOne>();
}

bool Mesh::waits() const noexcept {
  const std::lock_guard lock(mutex_);
  return messages_ != nullptr;
}

bool Mesh::ended(int peer) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!is_up()) return true;
    if (messages_ == nullptr && !checked_) return false;
  }
  bool left = left_.contains(peer);
  bool late = false;
  bool store_ended = false;
  try {
    left = left || agreement().left(peer);
    late = !left && agreement().collecting();
  } catch (...) {  // The program may supply the store, so it may throw any type.
    store_ended = true;
  }
  if (left) left_.insert(peer);
  // In checked mode a call waits for the records of all ranks before it sends a message.
  if (checked_ && !left && !store_ended) {
    const auto now = std::chrono::steady_clock::now();
    if (!died_) died_ = now;
    late = late || now - *died_ > 1000ms;
  }
  // A rank that left fails only its own messages. If the store does not answer, it may have left.
  const auto only = left || store_ended ? std::optional<int>(peer) : std::nullopt;
  if (!late && !waits_in_vain(only, only ? 1000ms : 50ms)) return false;
  fail({.cause = lost(peer, names_(peer))});
  return true;
}

/// True when a message has been doubtful for `patience`, so that it is unlikely to arrive. Until
/// then it may: the last bytes of a rank that left may still be in the kernel's buffer, and after a
/// failure peers may finish an earlier call.
bool Mesh::waits_in_vain(std::optional<int> only, std::chrono::nanoseconds patience) noexcept {
  const std::lock_guard lock(mutex_);
  if (!is_up()) return false;
  const auto now = std::chrono::steady_clock::now();
  for (auto* m = messages_; m != nullptr; m = m->after_) {
    if (only && m->peer_ != *only) continue;
    if (!m->doubted_) m->doubted_ = now;
    if (now - *m->doubted_ > patience) return true;
  }
  return false;
}

Error Mesh::lost(int peer, int rank) const {
  std::string text = fmt::format("the connection to rank {} ended: ", rank);
  try {
    if (agreement().left(peer))
      text = fmt::format("rank {} has left the group", rank);
    else
      text += "its process has died, or its host cannot be reached";
  } catch (...) {
    // The connection may have ended because the rank with the store died.
    text += "the store has ended too, so the first rank that died is not known";
    rank = -1;
  }
  return {Errc::peer_lost, text, {.group = names_.group(), .rank = rank}};
}

void Mesh::look() noexcept {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return;
  {
    const std::lock_guard lock(mutex_);
    bool waits = false;
    for (auto* m = messages_; m != nullptr; m = m->after_)
      waits = std::exchange(m->looked_at_, true) || waits;
    look_pause_ = waits ? std::min(2 * look_pause_, longest_look) : first_look;
    next_look_ = now + look_pause_;
    if (!waits) return;
  }
  if (agreement().new_refusals().empty()) return;
  cancel_if([&](const Message& m) { return agreement().refusal_of(m.call_) != nullptr; });
}

void Mesh::on_broken(const Error& cause) noexcept {
  decltype(listeners_) listeners;
  {
    const std::lock_guard lock(mutex_);
    listeners.swap(listeners_);
  }
  for (const auto& weak : listeners)
    if (const auto listener = weak.lock()) (*listener)(cause);
}

void Mesh::listen(const std::shared_ptr<const Listener>& listener) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_broken()) {  // Then on_broken() still takes the list.
      std::erase_if(listeners_, [](const auto& weak) { return weak.expired(); });
      listeners_.push_back(listener);
      return;
    }
  }
  (*listener)(*cause());
}

void Message::enlist() {
  const std::lock_guard lock(mesh_.mutex_);
  // A mesh that fails after this test cancels the messages in the list.
  if (!mesh_.is_up()) throw TransportError(TransportError::Kind::failed, peer_);
  if (mesh_.agreement().refusal_of(call_) != nullptr)
    throw TransportError(TransportError::Kind::refused, peer_);
  after_ = mesh_.messages_;
  if (after_ != nullptr) after_->before_ = this;
  mesh_.messages_ = this;
  listed_ = true;
}

void Message::leave() noexcept {
  const std::lock_guard lock(mesh_.mutex_);
  if (!std::exchange(listed_, false)) return;
  (before_ == nullptr ? mesh_.messages_ : before_->after_) = after_;
  if (after_ != nullptr) after_->before_ = before_;
}

TransportError Message::cancelled() const {
  const bool refused = mesh_.is_up() && mesh_.agreement().refusal_of(call_) != nullptr;
  return {refused ? TransportError::Kind::refused : TransportError::Kind::failed, peer_};
}

}  // namespace tutti::backend::mesh
