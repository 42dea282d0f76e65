#include "rendezvous.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "backend/agreement.hpp"
#include "batch_policy.hpp"
#include "sigpipe.hpp"
#include "store/checks.hpp"
#include "values/bytes.hpp"
#include "values/fail.hpp"
#include "values/host_identity.hpp"

namespace tutti::backend::gloo {
namespace {

using namespace std::chrono_literals;
namespace transport = ::gloo::transport;

constexpr int attempts = 5;

/// The data that a rank publishes in the store for its peers.
struct PeerInfo {
  std::string host;       ///< Equal for ranks that reach each other over loopback.
  std::string interface;  ///< Its name and address, for error texts.
  bool loopback = false;
  std::vector<std::vector<char>> addresses;  ///< By rank: the address that the peer connects to.
};

Bytes encode(const PeerInfo& info) {
  internal::Writer out;
  out.text(info.host).text(info.interface).u8(info.loopback ? 1 : 0);
  for (const auto& address : info.addresses) out.text({address.data(), address.size()});
  return out.take();
}

PeerInfo decode(std::span<const std::byte> bytes, int rank, int size) {
  const auto what = fmt::format("gloo: the address of rank {} in the store", rank);
  internal::Reader in(bytes, Errc::backend, what);
  PeerInfo info;
  info.host = in.text();
  info.interface = in.text();
  info.loopback = in.u8() != 0;
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

std::vector<PeerInfo> exchange_peer_infos(const MeshInit& init, Store& store,
                                          const std::string& prefix, const PeerInfo& mine) {
  store.set(fmt::format("{}{}", prefix, init.rank), encode(mine));
  std::vector<PeerInfo> peer_infos;
  for (int r = 0; r < init.size; ++r) {
    try {
      peer_infos.push_back(
          decode(store.get(fmt::format("{}{}", prefix, r), init.limit), r, init.size));
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
      throw internal::rendezvous_error(store, prefix, init.group, init.size);
    }
  }
  return peer_infos;
}

void check_reachable(const MeshInit& init, const std::vector<PeerInfo>& peer_infos) {
  for (int r = 0; r < init.size; ++r)
    for (int other = 0; other < init.size; ++other) {
      const auto& a = peer_infos[static_cast<std::size_t>(r)];
      const auto& b = peer_infos[static_cast<std::size_t>(other)];
      if (a.loopback && a.host != b.host)
        internal::failf(
            Errc::unsupported,
            "group '{}': rank {} would use {}, which rank {} on another host cannot reach; name "
            "the interface in TUTTI_IFNAME, or give a store address that other hosts can reach",
            init.group, r, a.interface, other);
    }
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

/// Returns the random token of an attempt, the same on all ranks, which only clients of the store
/// know.
std::uint64_t shared_token(Store& store, const std::string& prefix) {
  std::random_device random;
  const auto mine = fmt::format("{:08x}{:08x}", random(), random());
  const auto first = store.compare_set(prefix + "token", {}, internal::to_bytes(mine));
  return std::stoull(internal::to_text(first), nullptr, 16);
}

/// Exchanges ranks over every connection, because its peer may be unauthenticated. `own`: this
/// rank's addresses of the connections to the other ranks. Returns the peers' addresses. Throws if
/// a peer is not the expected rank or does not answer.
std::vector<sockaddr_storage> handshake(transport::Context& context, const MeshInit& init,
                                        const std::string& prefix, std::uint64_t token,
                                        std::span<const sockaddr_storage> own) {
  struct Handshake {
    std::uint64_t magic = 0x69747475742f676cU;  // "lg/tutti"
    std::int32_t from = -1;
    std::int32_t to = -1;
    sockaddr_storage end{};
  };
  const auto size = static_cast<std::size_t>(init.size);
  std::vector<Handshake> out(size);
  std::vector<Handshake> in(size);
  std::vector<std::unique_ptr<transport::UnboundBuffer>> buffers;
  const auto me = static_cast<std::size_t>(init.rank);
  for (std::size_t r = 0; r < size; ++r) {
    if (r == me) continue;
    out[r].from = init.rank;
    out[r].to = static_cast<std::int32_t>(r);
    out[r].end = own[r < me ? r : r - 1];
    buffers.push_back(context.createUnboundBuffer(&in[r], sizeof in[r]));
    buffers.back()->recv(static_cast<int>(r), token);
    buffers.push_back(context.createUnboundBuffer(&out[r], sizeof out[r]));
    buffers.back()->send(static_cast<int>(r), token);
  }
  // The timeout of one round trip. An unauthenticated peer may send nothing, and another attempt
  // needs time too.
  const auto limit = Deadline::after(clamp(init.limit.remaining() / attempts, 2s));
  for (std::size_t i = 0; i < buffers.size(); i += 2) {
    buffers[i]->waitRecv(nullptr, clamp(limit.remaining(), 5s));
    buffers[i + 1]->waitSend(nullptr, clamp(limit.remaining(), 5s));
  }
  for (std::size_t r = 0; r < size; ++r)
    if (r != me &&
        (in[r].magic != out[r].magic || in[r].from != out[r].to || in[r].to != out[r].from))
      internal::failf(Errc::backend, "gloo: {}: the peer that answered is not rank {}", prefix, r);
  std::vector<sockaddr_storage> ends;
  for (std::size_t r = 0; r < size; ++r)
    if (r != me) ends.push_back(in[r].end);
  return ends;
}

class Attempt {
 public:
  Attempt(const MeshInit& init, const Connections& connections, int number)
      : init_(init),
        made_{connections.store, connections.interface, connections.device, {}, {}},
        prefix_(fmt::format("attempt/{}/", number)) {}

  /// Publishes this rank's addresses and reads those of its peers. @throws Error, which ends the
  /// rendezvous.
  void exchange_addresses() {
    made_.context = made_.device->createContext(init_.rank, init_.size);
    // Connecting takes up to 5 of these timeouts, and another attempt needs time too.
    made_.context->setTimeout(clamp(init_.limit.remaining() / 5 / attempts, 2s));
    const auto host = internal::host_identity();
    PeerInfo info{fmt::format("{} {}", host.boot, host.network),
                  fmt::format("{} ({})", made_.interface.name, made_.interface.address),
                  made_.interface.loopback,
                  {}};
    std::vector<sockaddr_storage> own;
    for (int r = 0; r < init_.size; ++r) {
      info.addresses.emplace_back();
      if (r == init_.rank) continue;
      const auto& pair = *made_.context->createPair(r);
      info.addresses.back() = pair.address().bytes();
      if (listens_alone(pair)) own.push_back(address_of(pair));
    }
    token_ = shared_token(*made_.store, prefix_);
    admit_only(token_, own);
    peer_infos_ = exchange_peer_infos(init_, *made_.store, prefix_, info);
    check_reachable(init_, peer_infos_);
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
    const auto theirs = handshake(*made_.context, init_, prefix_, token_, own);
    made_.sockets = Sockets::find(own, theirs);
    made_.sockets.admit_all();
    if (init_.settings.reno) use_reno();
  }

  /// True if all ranks are connected. The last rank that reports publishes the outcome.
  bool agree(bool connected) {
    auto& store = *made_.store;
    if (!connected) store.add(prefix_ + "failed", 1);
    if (store.add(prefix_ + "done", 1) == init_.size)
      store.set(prefix_ + "outcome", store.try_get(prefix_ + "failed") ? "again" : "up");
    return store.get_text(prefix_ + "outcome", init_.limit) == "up";
  }

  Connections take() { return std::move(made_); }

 private:
  /// Loopback has no slow link whose queue bbr could keep short, and bbr's pacing costs time there.
  void use_reno() const noexcept {
    const auto me = static_cast<std::size_t>(init_.rank);
    for (std::size_t r = 0; r < peer_infos_.size(); ++r)
      if (r != me && peer_infos_[r].host == peer_infos_[me].host)
        made_.sockets.set_congestion_control(r < me ? r : r - 1, "reno");
  }

  const MeshInit& init_;
  Connections made_;
  std::string prefix_;
  std::uint64_t token_ = 0;
  std::vector<PeerInfo> peer_infos_;
};

}  // namespace

Connections rendezvous(const MeshInit& init) {
  const BlockSigpipe quiet;  // Gloo's thread inherits the blocked signal.
  Connections made;
  // Every W arrivals form one group, so a name may be reused once the earlier group is complete.
  const auto arrival = init.store->add("gloo/arrivals", 1);
  made.store = make_prefix_store(init.store, fmt::format("gloo/{}/", (arrival - 1) / init.size));
  made.interface =
      choose_interface(interfaces(), init.interface,
                       init.store->in_process() ? "127.0.0.1" : init.store->local_address());
  ::gloo::transport::tcp::attr attr;
  attr.hostname = made.interface.address;
  try {
    const BatchPolicy batch(init.settings.batch);  // Gloo's thread inherits this too.
    made.device = ::gloo::transport::tcp::CreateDevice(attr);
  } catch (const std::exception& error) {
    internal::failf(Errc::backend, "gloo: cannot use {} ({}): {}", made.interface.name,
                    made.interface.address, error.what());
  }
  std::string last;
  for (int number = 0; number < attempts; ++number) {
    Attempt attempt(init, made, number);
    attempt.exchange_addresses();
    bool connected = true;
    try {
      attempt.connect();
    } catch (const std::exception& error) {
      connected = false;
      last = error.what();
      init.logger(LogLevel::warning, fmt::format("group '{}': rank {} could not connect: {}",
                                                 init.group, init.rank, last));
    }
    if (attempt.agree(connected)) return attempt.take();
  }
  internal::failf(Errc::backend, "group '{}': {} attempts to connect failed; the last time: {}",
                  init.group, attempts, last.empty() ? "on another rank" : last);
}

}  // namespace tutti::backend::gloo
