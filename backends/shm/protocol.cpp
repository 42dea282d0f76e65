#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "backend/record.hpp"
#include "messages.hpp"

// The matching of sends and receives, and the frames that ranks exchange for it.

namespace tutti::backend::shm {
namespace {

constexpr std::size_t longest_text = 1000;

Error refused_by(const Member& member, const Op& op, int rank, std::string_view text) {
  return internal::refused_error(member.names(), {&op, 1}, {}, rank, text);
}

Error differs(const Member& member, const Op& op, int sender, std::string_view send, int receiver,
              std::string_view receive) {
  return internal::call_error(
      Errc::mismatch, member.names(), {&op, 1}, {}, -1,
      internal::sides_text(member.names(), sender, send, receiver, receive));
}

bool fits(int peer, int tag, int from, std::int32_t sent_tag) {
  return tag == sent_tag && (peer == from || peer == any_peer);
}

}  // namespace

std::size_t Messages::short_bytes() const noexcept {
  return std::min<std::size_t>(2048, member_->layout().ring_bytes() / 4);
}

// --- Matching ---

void Messages::add(const std::shared_ptr<Message>& message) {
  const auto& op = message->op();
  if (op.kind == Operation::recv) return match_receive({op.peer, op.tag, message, {}});
  Frame frame{
      .tag = op.tag, .id = ++last_id_, .fingerprint = op.fingerprint, .bytes = op.in.bytes()};
  if (op.peer == member_->rank()) return match_request({op.peer, frame, {}, message});
  auto& peer = peers_[static_cast<std::size_t>(op.peer)];
  peer.sends.emplace(frame.id, Transfer{message});
  if (frame.bytes <= short_bytes()) frame.payload = frame.bytes;
  put(op.peer, frame, op.in.data);
}

void Messages::match_request(Request request) {
  const auto found = std::ranges::find_if(receives_, [&](const Receive& receive) {
    return fits(receive.peer, receive.tag, request.from, request.frame.tag);
  });
  if (found == receives_.end()) return requests_.push_back(std::move(request));
  auto receive = std::move(*found);
  receives_.erase(found);
  complete(request, receive);
}

void Messages::match_receive(Receive receive) {
  const auto found = std::ranges::find_if(requests_, [&](const Request& request) {
    return fits(receive.peer, receive.tag, request.from, request.frame.tag);
  });
  if (found == requests_.end()) return receives_.push_back(std::move(receive));
  auto request = std::move(*found);
  requests_.erase(found);
  complete(request, receive);
}

void Messages::complete(Request& request, Receive& receive) {
  const int me = member_->rank();
  const auto& message = receive.message;
  if (request.frame.kind == Frame::Kind::refused_send) {
    if (message == nullptr) return;
    const std::string_view why(reinterpret_cast<const char*>(request.payload.data()),
                               request.payload.size());
    const auto error = refused_by(*member_, message->op(), request.from, why);
    return end(message, &error);
  }
  if (message == nullptr) {
    if (request.local == nullptr)
      return put_text(request.from, Frame::Kind::refused_receive, request.frame.id, 0,
                      receive.text);
    const auto error = refused_by(*member_, request.local->op(), me, receive.text);
    return end(request.local, &error);
  }
  if (request.frame.fingerprint == message->op().fingerprint) return accept(request, message);
  if (request.local == nullptr) {
    peers_[static_cast<std::size_t>(request.from)].differing.emplace(request.frame.id, message);
    return put_text(request.from, Frame::Kind::differs, request.frame.id, 0,
                    message->description());
  }
  for (const auto& side : {request.local, message}) {
    const auto error =
        differs(*member_, side->op(), me, request.local->description(), me, message->description());
    end(side, &error);
  }
}

void Messages::accept(Request& request, const std::shared_ptr<Message>& message) {
  const auto& op = message->op();
  if (request.frame.bytes != op.out.bytes()) {
    corrupt_ = member_->corrupt_error(request.from, "a message's length");
    return;
  }
  if (op.source != nullptr) *op.source = request.from;
  if (request.local != nullptr) {
    const auto& in = request.local->op().in;
    if (request.frame.bytes != 0 && op.out.data != in.data)
      std::memmove(op.out.data, in.data, in.bytes());
    end(request.local, nullptr);
    return end(message, nullptr);
  }
  put(request.from, {.kind = Frame::Kind::accept, .id = request.frame.id}, nullptr);
  if (request.frame.payload != request.frame.bytes) {
    peers_[static_cast<std::size_t>(request.from)].receives.emplace(request.frame.id,
                                                                    Transfer{message});
    return;
  }
  if (!request.payload.empty())
    std::memcpy(op.out.data, request.payload.data(), request.payload.size());
  end(message, nullptr);
}

void Messages::end(const std::shared_ptr<Message>& message, const Error* error) noexcept {
  const auto found = std::ranges::find(pending_, message);
  if (found == pending_.end()) return;  // Ended already.
  ended_.push_back({message, error == nullptr ? nullptr : std::make_exception_ptr(*error)});
  pending_.erase(found);
}

// --- Frames ---

void Messages::put(int to, Frame frame, const void* payload) {
  const auto* bytes = static_cast<const std::byte*>(payload);
  peers_[static_cast<std::size_t>(to)].packets.push_back(
      {frame, frame.payload == 0 ? std::vector<std::byte>()
                                 : std::vector<std::byte>(bytes, bytes + frame.payload)});
}

void Messages::put_text(int to, Frame::Kind kind, std::uint64_t id, std::int32_t tag,
                        std::string_view text) {
  const auto shown = text.substr(0, longest_text);
  put(to, {.kind = kind, .tag = tag, .id = id, .payload = shown.size()}, shown.data());
}

bool Messages::move() {
  bool moved = false;
  for (int r = 0; r < member_->size() && !corrupt_; ++r) {
    if (r == member_->rank()) continue;
    moved = receive_from(r) || moved;
    moved = send_to(r) || moved;
  }
  return moved;
}

bool Messages::receive_from(int from) {
  auto& in = peers_[static_cast<std::size_t>(from)].in;
  bool moved = false;
  Frame frame;
  // At most a ring's length, so that a fast sender delays nothing else.
  const auto end = in.position() + member_->layout().ring_bytes();
  for (auto state = in.next(frame); state != RingReceiver::State::empty && in.position() < end;
       state = in.next(frame)) {
    if (state == RingReceiver::State::frame) handle(from, frame);
    if (state == RingReceiver::State::corrupt) corrupt_ = member_->corrupt_error(from, "a frame");
    if (corrupt_) return true;
    in.pop(frame);
    moved = true;
  }
  if (moved) wake(from);  // It may wait for room.
  return moved;
}

/// Wakes the thread of a peer, in one of whose rings this rank has moved an end.
void Messages::wake(int rank) noexcept {
  auto& bell = member_->message_bell(rank);
  // Both sides store their own word, then load the peer's, all sequentially consistent. So either
  // the peer sees the new end of the ring, or this rank sees that the peer sleeps.
  if (bell.sleeps.load(std::memory_order_seq_cst) != 0) Member::ring_bell(bell);
}

bool Messages::send_to(int to) {
  auto& peer = peers_[static_cast<std::size_t>(to)];
  bool moved = false;
  while (!peer.packets.empty()) {
    const auto& packet = peer.packets.front();
    const auto room = room_to(to);
    if (room == 0 || room < packet.frame.payload) break;
    peer.out.push(packet.frame, packet.payload.data());
    peer.packets.pop_front();
    moved = true;
  }
  if (peer.packets.empty()) moved = send_data(to) || moved;
  if (moved) wake(to);
  return moved;
}

/// The room in the ring to a peer.
std::size_t Messages::room_to(int to) {
  const auto room = peers_[static_cast<std::size_t>(to)].out.room();
  if (!room) corrupt_ = member_->corrupt_error(to, "the end of a ring");
  return room.value_or(0);
}

bool Messages::send_data(int to) {
  auto& peer = peers_[static_cast<std::size_t>(to)];
  bool moved = false;
  while (!peer.accepted.empty()) {
    const auto id = peer.accepted.front();
    auto& transfer = peer.sends.at(id);
    const auto& in = transfer.message->op().in;
    const auto left = in.bytes() - transfer.moved;
    const auto most = std::min<std::uint64_t>(left, member_->layout().ring_bytes() / 4);
    // Few large frames: waits for room for a whole one.
    if (room_to(to) < most) return moved;
    peer.out.push({.kind = Frame::Kind::data, .id = id, .payload = most},
                  static_cast<const std::byte*>(in.data) + transfer.moved);
    transfer.moved += most;
    moved = true;
    if (transfer.moved != in.bytes()) continue;
    end(transfer.message, nullptr);
    peer.sends.erase(id);
    peer.accepted.pop_front();
  }
  return moved;
}

void Messages::handle(int from, const Frame& frame) {
  auto& peer = peers_[static_cast<std::size_t>(from)];
  const int me = member_->rank();
  switch (frame.kind) {
    case Frame::Kind::request:
    case Frame::Kind::refused_send:
      return handle_request(from, frame);
    case Frame::Kind::data:
      return handle_data(from, frame);
    case Frame::Kind::accept: {
      const auto found = peer.sends.find(frame.id);
      if (found == peer.sends.end()) break;
      if (found->second.message->op().in.bytes() > short_bytes()) {
        peer.accepted.push_back(frame.id);
      } else {
        end(found->second.message, nullptr);
        peer.sends.erase(found);
      }
      return;
    }
    case Frame::Kind::differs:
      if (const auto message = take_send(from, frame.id)) {
        const auto own = message->description();
        put_text(from, Frame::Kind::explanation, frame.id, 0, own);
        const auto error = differs(*member_, message->op(), me, own, from, read_text(from, frame));
        return end(message, &error);
      }
      break;
    case Frame::Kind::refused_receive:
      if (const auto message = take_send(from, frame.id)) {
        const auto error = refused_by(*member_, message->op(), from, read_text(from, frame));
        return end(message, &error);
      }
      break;
    case Frame::Kind::explanation: {
      const auto found = peer.differing.find(frame.id);
      if (found == peer.differing.end()) break;
      const auto message = found->second;
      peer.differing.erase(found);
      const auto error = differs(*member_, message->op(), from, read_text(from, frame), me,
                                 message->description());
      return end(message, &error);
    }
  }
  corrupt_ = member_->corrupt_error(from, "a frame");
}

void Messages::handle_request(int from, const Frame& frame) {
  const bool is_short = frame.payload == (frame.bytes <= short_bytes() ? frame.bytes : 0);
  if (frame.kind == Frame::Kind::request ? !is_short : frame.payload > longest_text) {
    corrupt_ = member_->corrupt_error(from, "a message's length");
    return;
  }
  Request request{from, frame, std::vector<std::byte>(frame.payload), nullptr};
  peers_[static_cast<std::size_t>(from)].in.read(frame, request.payload.data());
  match_request(std::move(request));
}

void Messages::handle_data(int from, const Frame& frame) {
  auto& peer = peers_[static_cast<std::size_t>(from)];
  const auto found = peer.receives.find(frame.id);
  if (found == peer.receives.end() || frame.payload == 0 ||
      frame.payload > found->second.message->op().out.bytes() - found->second.moved) {
    corrupt_ = member_->corrupt_error(from, "a frame of data");
    return;
  }
  auto& transfer = found->second;
  const auto& out = transfer.message->op().out;
  peer.in.read(frame, static_cast<std::byte*>(out.data) + transfer.moved);
  transfer.moved += frame.payload;
  if (transfer.moved != out.bytes()) return;
  end(transfer.message, nullptr);
  peer.receives.erase(found);
}

std::shared_ptr<Messages::Message> Messages::take_send(int from, std::uint64_t id) {
  auto& sends = peers_[static_cast<std::size_t>(from)].sends;
  const auto found = sends.find(id);
  if (found == sends.end()) return nullptr;
  auto message = found->second.message;
  sends.erase(found);
  return message;
}

std::string Messages::read_text(int from, const Frame& frame) {
  std::string text(std::min<std::size_t>(frame.payload, longest_text), ' ');
  Frame shown = frame;
  shown.payload = text.size();
  peers_[static_cast<std::size_t>(from)].in.read(shown, text.data());
  return text;
}

}  // namespace tutti::backend::shm
