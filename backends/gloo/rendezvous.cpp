#include "rendezvous.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>

#include "backend/rank_location.hpp"
#include "backend/rendezvous.hpp"
#include "mesh/interface.hpp"
#include "mesh/secret.hpp"
#include "peer_proof.hpp"
#include "sigpipe.hpp"
#include "store/served_store.hpp"
#include "values/bytes.hpp"
#include "values/fail.hpp"

namespace tutti::backend::gloo {
namespace {

using namespace std::chrono_literals;
namespace crypto = internal::crypto;
namespace transport = ::gloo::transport;

/// The time for all connections, and then for all proofs. An unauthenticated peer may be silent.
constexpr std::chrono::nanoseconds time_to_connect = 30s;

/// The data that a rank publishes in the store for its peers.
struct PeerInfo {
  mesh::Interface interface {};
  std::vector<std::vector<char>> addresses{};  ///< By rank: the address that it connects to.
};

Bytes encode(const PeerInfo& info) {
  internal::Writer out;
  mesh::write(out, info.interface);
  for (const auto& address : info.addresses) out.text({address.data(), address.size()});
  return out.take();
}

PeerInfo decode(std::span<const std::byte> bytes, int rank, std::size_t size) {
  const auto what = fmt::format("gloo: the address of rank {} in the store", rank);
  internal::Reader in(bytes, Errc::backend, what);
  PeerInfo info{.interface = mesh::read_interface(in)};
  while (info.addresses.size() < size) {
    const auto address = in.text();
    info.addresses.emplace_back(address.begin(), address.end());
  }
  in.end();
  return info;
}

std::shared_ptr<transport::Device> make_device(const mesh::Interface& interface) {
  transport::tcp::attr attr;
  attr.hostname = interface.address;
  try {
    return transport::tcp::CreateDevice(attr);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    internal::failf(Errc::backend, "gloo: cannot use {} ({}): {}", interface.name,
                    interface.address, error.what());
  }
}

End end_of(const sockaddr_storage& address) {
  End end{};
  transport::tcp::Address(address).str().copy(end.data(), end.size());
  return end;
}

/// `ask`: getsockname or getpeername. Zeros if the descriptor has no such end.
template <typename Ask>
End end_of(int descriptor, const Ask& ask) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (ask(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return end_of(address);
}

/// The connections of a context, while they are made.
class Connector {
 public:
  Connector(transport::Context& context, const internal::GroupNames& names,
            const crypto::Digest& secret)
      : context_(context),
        names_(names),
        secret_(secret),
        mine_(static_cast<std::size_t>(context.size)),
        theirs_(mine_.size()) {}

  /// @throws Error backend: a connection failed, or its peer has not proved to be that rank.
  void connect(const std::vector<PeerInfo>& infos) {
    for_each_peer([&](int peer, std::size_t r) {
      auto& pair = *context_.getPair(peer);
      pair.connect(infos[r].addresses[static_cast<std::size_t>(context_.rank)]);
      mine_[r].end =
          end_of(static_cast<const transport::tcp::Address&>(pair.address()).getSockaddr());
      mine_[r].sign(secret_, context_.rank, peer);
    });
  }

  void exchange_proofs(Deadline limit) {
    constexpr std::uint64_t slot = 0;
    std::vector<std::unique_ptr<transport::UnboundBuffer>> sends(mine_.size());
    std::vector<std::unique_ptr<transport::UnboundBuffer>> recvs(mine_.size());
    for_each_peer([&](int peer, std::size_t r) {
      recvs[r] = context_.createUnboundBuffer(&theirs_[r], sizeof theirs_[r]);
      recvs[r]->recv(peer, slot);
      sends[r] = context_.createUnboundBuffer(&mine_[r], sizeof mine_[r]);
      sends[r]->send(peer, slot);
    });
    for_each_peer([&](int peer, std::size_t r) {
      recvs[r]->waitRecv(nullptr, timeout_of(limit));
      sends[r]->waitSend(nullptr, timeout_of(limit));
      if (!theirs_[r].is_of(secret_, peer, context_.rank))
        throw std::runtime_error("its peer has not proved to be that rank");
    });
  }

  /// Duplicates of Gloo's sockets, by rank. Gloo does not show its descriptors, and may close them
  /// at any time. They are found by the addresses of both ends, and get close-on-exec.
  std::vector<mesh::Socket> find_sockets() {
    std::vector<mesh::Socket> found(mine_.size());
    // Not std::filesystem::directory_iterator, which ends the process if it has no memory
    // (libstdc++ 12).
    const std::unique_ptr<DIR, decltype([](DIR* directory) { ::closedir(directory); })> directory(
        ::opendir("/proc/self/fd"));
    while (const auto* entry = directory == nullptr ? nullptr : ::readdir(directory.get())) {
      const int descriptor = std::atoi(entry->d_name);
      const auto own = end_of(descriptor, ::getsockname);
      const auto peer = end_of(descriptor, ::getpeername);
      for (std::size_t r = 0; r < found.size(); ++r) {
        if (found[r] || peer == End{} || own != mine_[r].end || peer != theirs_[r].end) continue;
        ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
        found[r] = mesh::Socket(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
      }
    }
    for_each_peer([&](int, std::size_t r) {
      if (!found[r])
        throw std::runtime_error(
            "no socket of this process has both its ends: it has ended, or a relay or a network "
            "that translates addresses is between them");
    });
    return found;
  }

 private:
  template <typename Body>
  void for_each_peer(const Body& body) {
    for (int peer = 0; peer < context_.size; ++peer) {
      if (peer == context_.rank) continue;
      try {
        body(peer, static_cast<std::size_t>(peer));
      } catch (const std::bad_alloc&) {
        throw;
      } catch (const std::exception& error) {
        internal::failf(
            Errc::backend,
            "gloo: the connection to rank {} failed: {}; either that rank is late, or "
            "another program has connected to Gloo's port, which ends the creation of a "
            "group over gloo, but not over tcp",
            names_(peer), error.what());
      }
    }
  }

  transport::Context& context_;
  const internal::GroupNames& names_;
  const crypto::Digest& secret_;
  std::vector<PeerProof> mine_;  // By the peer's rank.
  std::vector<PeerProof> theirs_;
};

}  // namespace

mesh::Connected<Links> rendezvous(const BackendInit& init, std::function<void(int peer)> ended) {
  const BlockSigpipe quiet;  // Gloo's thread inherits the blocked signal.
  internal::Rendezvous rendezvous(init);
  const auto locations = internal::locations_of(init, rendezvous);
  PeerInfo own{.interface = mesh::interface_of(init, locations)};
  const auto context = make_device(own.interface)->createContext(init.rank, init.size);
  const auto time = std::min(rendezvous.limit().remaining() / 2, time_to_connect);
  context->setTimeout(timeout_of(Deadline::after(time / 5)));  // Connecting takes up to 5 of these.
  for (int r = 0; r < init.size; ++r)
    own.addresses.push_back(r == init.rank ? std::vector<char>()
                                           : context->createPair(r)->address().bytes());
  auto secret = mesh::secret_of(rendezvous, "gloo", internal::identity_of(*init.store));
  const auto texts = rendezvous.exchange("gloo/address", encode(own));

  mesh::Connected<Links> made{.transport = "tcp/" + own.interface.name};
  std::vector<PeerInfo> infos;
  std::vector<mesh::Interface> interfaces;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    infos.push_back(decode(texts[r], rendezvous.names()(static_cast<int>(r)), texts.size()));
    interfaces.push_back(infos.back().interface);
    if (locations[r]->serves_store) made.server = static_cast<int>(r);
  }
  mesh::check_reachable(rendezvous.names(), locations, interfaces);
  Connector connector(*context, rendezvous.names(), secret);
  connector.connect(infos);
  connector.exchange_proofs(Deadline::after(time));
  crypto::erase(secret);
  auto sockets = connector.find_sockets();
  const auto& here = *locations[static_cast<std::size_t>(init.rank)];
  for (std::size_t r = 0; r < sockets.size(); ++r) {
    if (!sockets[r]) continue;
    if (init.dead_after.count() > 0) mesh::end_unanswered(sockets[r].get(), init.dead_after);
    if (locations[r]->shares_loopback(here)) mesh::use_reno(sockets[r].get());
  }
  // No rank uses the group before all are connected.
  (void)rendezvous.exchange("gloo/connected", std::string_view());
  made.links = std::make_shared<Links>(context, std::move(sockets), std::move(ended));
  return made;
}

}  // namespace tutti::backend::gloo
