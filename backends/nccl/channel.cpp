#include "channel.hpp"

#include <chrono>
#include <utility>

namespace tutti::backend::nccl {
namespace {

constexpr int sender = 0;
constexpr int receiver = 1;

/// The time for which a message waits for another call that is being queued on the device, and for
/// which it then keeps other calls waiting.
constexpr std::chrono::milliseconds patience_with_calls{20};
constexpr std::chrono::milliseconds queues_within{2};

}  // namespace

Channel::Channel(std::shared_ptr<Gpu> gpu, Store& store, std::string key, bool sends,
                 Memory& memory)
    : gpu_(std::move(gpu)),
      store_(store),
      key_(std::move(key)),
      sends_(sends),
      memory_(memory),
      communicator_(std::make_shared<Communicator>(gpu_)),
      stream_(gpu_) {}

Channel::~Channel() {
  if (token_ != nullptr) memory_.release(token_, 1, stream_.handle());
}

void Channel::post(Message message) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(message));
}

void Channel::advance() {
  const std::lock_guard lock(mutex_);
  // Looks for NCCL's errors, because queued messages may still run on the device.
  if (waiting_.empty()) {
    if (step_ == Step::open) communicator_->look();
    return;
  }
  const DeviceScope scope(gpu_->cuda(), gpu_->index());
  if (step_ != Step::open && !connect()) return;
  while (!waiting_.empty() && send_front()) {
  }
}

bool Channel::connect() {
  if (step_ == Step::idle) {
    ncclUniqueId id;
    if (sends_) {
      check(gpu_->nccl(), gpu_->nccl().get_unique_id(&id), "ncclGetUniqueId");
      store_.set(key_, std::as_bytes(std::span(&id, 1)));
    } else {
      const auto bytes = store_.try_get(key_);
      if (!bytes) return false;
      id = to_id(*bytes, "the sender");
      (void)store_.erase(key_);
    }
    communicator_->begin(id, sends_ ? sender : receiver, 2);
    step_ = Step::connecting;
  }
  if (!communicator_->ready()) return false;
  step_ = Step::open;
  return true;
}

bool Channel::is_idle() {
  const std::lock_guard lock(mutex_);
  return waiting_.empty();
}

void Channel::give_up() noexcept {
  const std::lock_guard lock(mutex_);
  turn_.reset();
}

/// Advances the first message. True when it has been queued and removed.
bool Channel::send_front() {
  auto& message = waiting_.front();
  if (!under_way_) {
    // NCCL does not permit threads to queue calls on a device in parallel. The message that
    // connects the two ranks waits for the peer, so it cannot have the device to itself.
    if (connected_) {
      auto turn = gpu_->try_turn(patience_with_calls);
      if (!turn) return false;
      turn_.emplace(std::move(*turn));
    }
    under_way_ = true;
    message.input.block(stream_.get());
    if (message.bytes == 0 && token_ == nullptr) token_ = memory_.allocate(1, stream_.handle());
    void* data = message.bytes == 0 ? token_ : message.data;
    const auto bytes = message.bytes == 0 ? 1 : message.bytes;
    const auto& nccl = gpu_->nccl();
    communicator_->use([&](ncclComm_t comm) {
      if (sends_)
        check(nccl, nccl.send(data, bytes, ncclUint8, receiver, comm, stream_.get()), "ncclSend");
      else
        check(nccl, nccl.recv(data, bytes, ncclUint8, sender, comm, stream_.get()), "ncclRecv");
    });
  }
  const auto enough = Deadline::after(queues_within);
  for (Pause pause; !communicator_->ready(); pause())
    if (!turn_ || enough.expired()) return false;
  connected_ = true;
  under_way_ = false;
  turn_.reset();
  auto event = gpu_->event();
  event.record(stream_.get());
  message.state->queued(std::move(event));
  waiting_.pop_front();
  return true;
}

}  // namespace tutti::backend::nccl
