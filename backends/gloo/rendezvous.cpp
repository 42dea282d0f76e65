#include "rendezvous.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "backend/rank_location.hpp"
#include "backend/rendezvous.hpp"
#include "batch_policy.hpp"
#include "mesh/sockets.hpp"
#include "peer_proof.hpp"
#include "sigpipe.hpp"
#include "store/checks.hpp"
#include "store/crypto.hpp"
#include "values/bytes.hpp"
#include "values/fail.hpp"

namespace tutti::backend::gloo {
namespace {

using namespace std::chrono_literals;
namespace transport = ::gloo::transport;
namespace crypto = internal::crypto;

constexpr int attempts = 5;

/// The data that a rank publishes in the store for its peers.
struct PeerInfo {
  mesh::Interface interface {};
  std::vector<std::vector<char>> addresses;  ///< By rank: the address that the peer connects to.
};

Bytes encode(const PeerInfo& info) {
  internal::Writer out;
  out.text(info.interface.name).text(info.interface.address).u8(info.interface.loopback ? 1 : 0);
  for (const auto& address : info.addresses) out.text({address.data(), address.size()});
  return out.take();
}

PeerInfo decode(std::span<const std::byte> bytes, int rank, int size) {
  const auto what = fmt::format("gloo: the address of rank {} in the store", rank);
  internal::Reader in(bytes, Errc::backend, what);
  PeerInfo info;
  info.interface.name = in.text();
  info.interface.address = in.text();
  info.interface.loopback = in.u8() != 0;
  for (int r = 0; r < size; ++r) {
    const auto address = in.text();
    info.addresses.emplace_back(address.begin(), address.end());
  }
  in.end();
  return info;
}

/// Converts a timeout for Gloo, to which 0 means 10 ms and a huge value overflows to "now".
std::chrono::milliseconds clamp(std::chrono::nanoseconds time, std::chrono::milliseconds most) {
  return std::clamp(
      std::chrono::ceil<std::chrono::milliseconds>(std::min<std::chrono::nanoseconds>(time, most)),
      1ms, most);
}

/// The pair's own address, from Gloo's serialised form.
sockaddr_storage address_of(const transport::Pair& pair) {
  const auto bytes = pair.address().bytes();
  sockaddr_storage address{};
  std::memcpy(&address, bytes.data(), std::min(bytes.size(), sizeof address));
  return address;
}

/// True when each pair has its own listener, as in Gloo of 2022. In later versions the pairs share
/// the device's listener, and a number after the address names the pair.
bool listens_alone(const transport::Pair& pair) {
  const auto bytes = pair.address().bytes();
  ssize_t number = -1;
  if (bytes.size() >= sizeof(sockaddr_storage) + sizeof number)
    std::memcpy(&number, bytes.data() + sizeof(sockaddr_storage), sizeof number);
  return number == -1;
}

/// The secret of an attempt, the same on all ranks, which only clients of the store know.
class Secret {
 public:
  /// The first rank chooses it. @throws Error unsupported if the ranks' builds differ in OpenSSL.
  Secret(internal::Rendezvous& rendezvous, const std::string& attempt, int rank) {
    std::array<std::byte, token_bytes + key_bytes> mine;
    crypto::random(mine);
    const auto size = crypto::available ? mine.size() : token_bytes;
    auto bytes = rendezvous.publish_first(attempt + "/secret", std::span(mine).first(size));
    crypto::erase(mine);
    if (bytes.size() != size)
      internal::failf(
          Errc::unsupported,
          "gloo: the ranks' secret has {} bytes, and rank {} uses {}: some ranks' tutti "
          "was built without OpenSSL",
          bytes.size(), rank, size);
    std::memcpy(&token_, bytes.data(), sizeof token_);
    if (size > token_bytes) key_.emplace(std::span(bytes).subspan<token_bytes, key_bytes>());
    crypto::erase(bytes);
  }

  /// Names the messages of the handshake. Sent in clear.
  std::uint64_t token() const noexcept { return token_; }
  /// Never sent. Null without OpenSSL.
  const crypto::Key* key() const noexcept { return key_ ? &*key_ : nullptr; }

 private:
  static constexpr std::size_t token_bytes = 8;
  static constexpr std::size_t key_bytes = 32;
  std::uint64_t token_ = 0;
  std::optional<crypto::Key> key_;
};

/// Exchanges proofs over every connection, because its peer may be unauthenticated. `own`: this
/// rank's addresses of the connections to the other ranks. Returns the peers' addresses. Throws if
/// a peer is not the expected rank or does not answer.
std::vector<sockaddr_storage> handshake(transport::Context& context, int rank,
                                        const internal::GroupNames& names,
                                        const std::string& attempt, const Secret& secret,
                                        std::span<const sockaddr_storage> own, Deadline end) {
  const auto size = own.size() + 1;
  std::vector<PeerProof> out(size);
  std::vector<PeerProof> in(size);
  std::vector<std::unique_ptr<transport::UnboundBuffer>> buffers;
  const auto me = static_cast<std::size_t>(rank);
  for (std::size_t r = 0; r < size; ++r) {
    if (r == me) continue;
    out[r].from = rank;
    out[r].to = static_cast<std::int32_t>(r);
    out[r].end = own[r < me ? r : r - 1];
    if (secret.key() != nullptr) out[r].sign(*secret.key());
    buffers.push_back(context.createUnboundBuffer(&in[r], sizeof in[r]));
    buffers.back()->recv(static_cast<int>(r), secret.token());
    buffers.push_back(context.createUnboundBuffer(&out[r], sizeof out[r]));
    buffers.back()->send(static_cast<int>(r), secret.token());
  }
  // The timeout of one round trip. An unauthenticated peer may send nothing, and another attempt
  // needs time too.
  const auto limit = Deadline::after(clamp(end.remaining() / attempts, 2s));
  for (std::size_t i = 0; i < buffers.size(); i += 2) {
    buffers[i]->waitRecv(nullptr, clamp(limit.remaining(), 5s));
    buffers[i + 1]->waitSend(nullptr, clamp(limit.remaining(), 5s));
  }
  std::vector<sockaddr_storage> ends;
  for (std::size_t r = 0; r < size; ++r) {
    if (r == me) continue;
    if (!out[r].is_answered_by(in[r], secret.key()))
      internal::failf(Errc::backend, "gloo: {}: peer not authenticated as rank {}", attempt,
                      names(static_cast<int>(r)));
    ends.push_back(in[r].end);
  }
  return ends;
}

class Attempt {
 public:
  Attempt(const MeshInit& init, internal::Rendezvous& rendezvous,
          const internal::RankLocations& locations, const Connections& connections, int number)
      : init_(init.group),
        settings_(init.settings),
        rendezvous_(rendezvous),
        locations_(locations),
        made_{connections.interface, connections.device, {}, {}, -1},
        name_(fmt::format("gloo/attempt {}", number)) {}

  ~Attempt() { close_pairs(); }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  /// Publishes this rank's addresses and reads those of its peers. @throws Error, which ends the
  /// rendezvous.
  void exchange_addresses() {
    // Before Gloo listens: the filter is then there at once.
    secret_.emplace(rendezvous_, name_, rendezvous_.names()(init_.rank));
    made_.context = made_.device->createContext(init_.rank, init_.size);
    // Connecting takes up to 5 of these timeouts, and another attempt needs time too.
    made_.context->setTimeout(clamp(rendezvous_.limit().remaining() / 5 / attempts, 2s));
    PeerInfo info{made_.interface, {}};
    std::vector<sockaddr_storage> own;
    for (int r = 0; r < init_.size; ++r) {
      info.addresses.emplace_back();
      if (r == init_.rank) continue;
      const auto& pair = *made_.context->createPair(r);
      info.addresses.back() = pair.address().bytes();
      if (listens_alone(pair)) own.push_back(address_of(pair));
    }
    admit_only(secret_->token(), own);
    const auto infos = rendezvous_.exchange(name_, encode(info));
    for (int r = 0; r < init_.size; ++r)
      peer_infos_.push_back(
          decode(infos[static_cast<std::size_t>(r)], rendezvous_.names()(r), init_.size));
    for (int r = 0; r < init_.size; ++r)
      if (locations_[static_cast<std::size_t>(r)]->serves_store) made_.server = r;
    std::vector<mesh::Interface> interfaces;
    for (const auto& peer : peer_infos_) interfaces.push_back(peer.interface);
    mesh::check_reachable(rendezvous_.names(), locations_, interfaces);
  }

  void connect() {
    std::vector<sockaddr_storage> own;
    for (int r = 0; r < init_.size; ++r) {
      if (r == init_.rank) continue;
      auto& pair = made_.context->getPair(r);
      pair->connect(
          peer_infos_[static_cast<std::size_t>(r)].addresses[static_cast<std::size_t>(init_.rank)]);
      own.push_back(address_of(*pair));
    }
    const auto theirs = handshake(*made_.context, init_.rank, rendezvous_.names(), name_, *secret_,
                                  own, rendezvous_.limit());
    made_.sockets = Sockets::find(own, theirs);
    if (const int relayed = made_.sockets.relayed(); relayed >= 0)
      internal::failf(Errc::backend,
                      "gloo: {}: the connection to rank {} does not end at that rank's address: a "
                      "relay, or a network that translates addresses, is between them",
                      name_, rendezvous_.names()(relayed < init_.rank ? relayed : relayed + 1));
    made_.sockets.admit_all();
    if (init_.dead_after.count() > 0)
      mesh::end_unanswered(made_.sockets.descriptors(), init_.dead_after);
    if (settings_.reno) use_reno();
  }

  /// True if all ranks are connected.
  bool agree(bool connected) {
    const std::string_view mine = connected ? "up" : "again";
    return std::ranges::count(rendezvous_.exchange(name_ + "/connected", mine), "up") == init_.size;
  }

  Connections take() { return std::move(made_); }

 private:
  /// Closes the pairs of an attempt that failed, many at a time: each waits for the next turn of
  /// Gloo's thread, which sleeps for 10 ms. Context would close them one after another.
  void close_pairs() noexcept {
    if (made_.context == nullptr) return;
    constexpr int threads = 32;
    std::vector<std::jthread> closing;
    const auto close_from = [this](int first) {
      for (int r = first; r < init_.size; r += threads) made_.context->getPair(r).reset();
    };
    try {
      for (int i = 1; i < threads && i < init_.size; ++i) closing.emplace_back(close_from, i);
    } catch (...) {  // Without a thread Context closes the rest.
    }
    close_from(0);
  }

  void use_reno() const noexcept {
    const auto me = static_cast<std::size_t>(init_.rank);
    for (std::size_t r = 0; r < locations_.size(); ++r)
      if (r != me && locations_[r]->shares_loopback(*locations_[me]))
        mesh::use_reno(made_.sockets.descriptors()[r < me ? r : r - 1]);
  }

  const BackendInit& init_;
  const Settings& settings_;
  internal::Rendezvous& rendezvous_;
  const internal::RankLocations& locations_;
  Connections made_;
  std::string name_;
  std::optional<Secret> secret_{};
  std::vector<PeerInfo> peer_infos_;
};

}  // namespace

Connections rendezvous(const MeshInit& init) {
  const BlockSigpipe quiet;  // Gloo's thread inherits the blocked signal.
  Connections made;
  internal::Rendezvous rendezvous(init.group);
  const auto locations = internal::locations_of(init.group, rendezvous);
  made.interface = mesh::interface_of(init.group);
  ::gloo::transport::tcp::attr attr;
  attr.hostname = made.interface.address;
  try {
    const BatchPolicy batch(init.settings.batch);  // Gloo's thread inherits this too.
    made.device = ::gloo::transport::tcp::CreateDevice(attr);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    internal::failf(Errc::backend, "gloo: cannot use {} ({}): {}", made.interface.name,
                    made.interface.address, error.what());
  }
  std::string last;
  for (int number = 0; number < attempts; ++number) {
    Attempt attempt(init, rendezvous, locations, made, number);
    attempt.exchange_addresses();
    bool connected = true;
    try {
      attempt.connect();
    } catch (const std::bad_alloc&) {
      throw;  // Another attempt would not help.
    } catch (const std::exception& error) {
      connected = false;
      last = error.what();
      const auto& names = rendezvous.names();
      init.group.logger(LogLevel::warning,
                        fmt::format("group '{}': rank {} could not connect: {}", names.group(),
                                    names(init.group.rank), last));
    }
    if (attempt.agree(connected)) return attempt.take();
  }
  internal::failf(Errc::backend, "group '{}': {} attempts to connect failed; the last time: {}",
                  rendezvous.names().group(), attempts, last.empty() ? "on another rank" : last);
}

}  // namespace tutti::backend::gloo
