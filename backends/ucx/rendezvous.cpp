#include "rendezvous.hpp"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "backend/rank_location.hpp"
#include "backend/rendezvous.hpp"
#include "gate.hpp"
#include "values/bytes.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"
#include "values/hash.hpp"

namespace tutti::backend::ucx {
namespace {

using namespace std::chrono_literals;

/// A tag has 16 bits for the rank.
constexpr int most_ranks = 1 << 16;

/// The data that a rank publishes in the store for its peers.
struct PeerInfo {
  Process process;
  std::string address;  ///< Of its UCP worker.
  Gate::Addresses listeners;
};

std::uint64_t checksum(std::string_view text) {
  internal::Hash hash;
  hash.add(text);
  return hash.value();
}

void write(internal::Writer& out, const Gate::Addresses& addresses) {
  out.u32(static_cast<std::uint32_t>(addresses.size()));
  for (const auto& address : addresses) out.text(address);
}

Gate::Addresses read_addresses(internal::Reader& in) {
  Gate::Addresses addresses;
  for (auto count = in.u32(); count > 0; --count) addresses.emplace_back(in.text());
  return addresses;
}

Bytes encode(const PeerInfo& info) {
  internal::Writer out;
  out.i64(info.process.id).u64(info.process.start);
  out.text(info.address).u64(checksum(info.address));
  write(out, info.listeners);
  return out.take();
}

/// UCX does not check an address that it unpacks, so this function does.
PeerInfo decode(const Bytes& bytes, int rank) {
  const auto what = fmt::format("ucx: the address of rank {} in the store", rank);
  internal::Reader in(bytes, Errc::backend, what);
  PeerInfo info;
  info.process.id = in.i64();
  info.process.start = in.u64();
  info.address = in.text();
  const auto sum = in.u64();
  info.listeners = read_addresses(in);
  in.end();
  if (info.address.empty() || sum != checksum(info.address))
    internal::failf(Errc::backend, "{} is damaged", what);
  return info;
}

/// The start of a process in ticks since the boot; 0 if it has ended.
std::uint64_t start_of(std::int64_t process) {
  std::string line;
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  file.exceptions(std::ios::badbit);  // Otherwise lack of memory reads as a process that has ended.
  std::getline(file, line);
  // "7 (name) S ...": the state is field 3, the start field 22. The name may contain anything.
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string field;
  std::uint64_t start = 0;
  fields >> field;
  if (field.empty() || field == "Z" || field == "X") return 0;
  for (int i = 4; i < 22; ++i) fields >> field;
  fields >> start;
  return start;
}

class Connector {
 public:
  explicit Connector(const MeshInit& init) : init_(init.group), transports_(init.transports) {}

  /// True if all ranks reach each other over the loopback interface, and TUTTI_HOSTS does not say
  /// otherwise.
  bool is_on_one_host() const {
    return std::ranges::all_of(locations_, [&](const auto& location) {
      return location->shares_loopback(*locations_[0]) && location->host == locations_[0]->host;
    });
  }

  /// Returns all but the worker.
  Connections connect(Worker& worker, Gate& gate) {
    try {
      return exchange_and_connect(worker, gate);
    } catch (...) {
      throw Error(told(worker, internal::to_error(std::current_exception())));
    }
  }

 private:
  Connections exchange_and_connect(Worker& worker, Gate& gate) {
    const PeerInfo own{Process::own(), worker.address(), gate.listeners()};
    const auto infos = rendezvous_.exchange("ucx/address", encode(own));
    std::vector<PeerInfo> peers;
    for (int r = 0; r < init_.size; ++r)
      peers.push_back(decode(infos[static_cast<std::size_t>(r)], names_(r)));
    if (!transports_.report_ends) check_one_host();
    std::vector<internal::Cores> here;
    for (const auto& location : locations_)
      if (location->identity.boot == own_location().identity.boot) here.push_back(location->cores);
    worker.set_polling(here.size(), internal::count_cores(here));
    for (int r = 0; r < init_.size; ++r)
      if (r != init_.rank) worker.connect(r, peers[static_cast<std::size_t>(r)].address);
    pass_gates(gate, peers);
    shake_hands(worker);
    if (gate.listeners().empty() && worker.transports().find("tcp/") != std::string::npos)
      internal::failf(Errc::unsupported,
                      "group '{}': rank {} does not find where UCX listens, so it cannot keep "
                      "unauthenticated peers away; use the backend tcp, or transports without tcp",
                      names_.group(), names_(init_.rank));
    Connections made;
    std::vector<Process> processes;
    for (int r = 0; r < init_.size; ++r) {
      processes.push_back(peers[static_cast<std::size_t>(r)].process);
      if (locations_[static_cast<std::size_t>(r)]->serves_store) made.server = r;
    }
    if (!transports_.report_ends) worker.set_processes(std::move(processes));
    return made;
  }

  /// Admits the connections of the peers, and no others. UCX has made all of them, and has sent
  /// nothing, because no progress has been made. When it makes progress, each connection of this
  /// rank has been admitted by its peer, so it does not end at an unauthenticated peer either.
  void pass_gates(Gate& gate, const std::vector<PeerInfo>& peers) {
    if (std::ranges::all_of(peers, [](const auto& peer) { return peer.listeners.empty(); })) return;
    Gate::Ranks listeners;
    for (int r = 0; r < init_.size; ++r) {
      const auto& peer = peers[static_cast<std::size_t>(r)];
      const bool here = locations_[static_cast<std::size_t>(r)]->shares_loopback(own_location());
      for (const auto& address : peer.listeners)
        if (r != init_.rank && (here || !is_loopback(address))) listeners.emplace(address, r);
    }
    auto own_ends = Gate::connected_to(listeners);
    internal::Writer out;
    for (int r = 0; r < init_.size; ++r) write(out, own_ends[r]);
    const auto look = [&] {
      if (const auto peer = Gate::lost(listeners)) fail_to_connect(*peer, "the connection ended");
    };
    admit(gate, rendezvous_.exchange("ucx/connections", out.take(), look), look);
    until([&] { return gate.shut(); }, look);
    (void)rendezvous_.exchange("ucx/admitted", {}, look);
    gate.refuse_others();
  }

  void admit(Gate& gate, const std::vector<Bytes>& lists, const std::function<void()>& look) {
    Gate::Ranks expected;
    for (int peer = 0; peer < init_.size; ++peer) {
      const auto what = fmt::format("ucx: the connections of rank {} in the store", names_(peer));
      internal::Reader in(lists[static_cast<std::size_t>(peer)], Errc::backend, what);
      for (int r = 0; r < init_.size; ++r)
        for (const auto& address : read_addresses(in))
          if (r == init_.rank) expected.emplace(address, peer);
      in.end();
    }
    if (until([&] { return gate.admit(expected); }, look)) return;
    const auto& [address, peer] = *expected.begin();
    throw Error(Errc::timeout,
                fmt::format("group '{}': rank {} connects to rank {} from {}, but no connection "
                            "from there has arrived before the deadline; UCX cannot be used "
                            "through a network that translates addresses, nor through a relay",
                            names_.group(), names_(peer), names_(init_.rank), address),
                {.rank = names_(peer)});
  }

  /// True if `done` has returned true before the deadline.
  bool until(const std::function<bool()>& done, const std::function<void()>& look) {
    for (auto pause = 20us; !done(); pause = std::min<std::chrono::microseconds>(2 * pause, 5ms)) {
      if (rendezvous_.limit().expired()) return false;
      rendezvous_.check();
      look();
      std::this_thread::sleep_for(pause);
    }
    return true;
  }

  [[noreturn]] void fail_to_connect(int peer, std::string_view why) const {
    internal::failf(Errc::backend, "group '{}': rank {} cannot connect to rank {}: {}",
                    names_.group(), names_(init_.rank), names_(peer), why);
  }

  /// Ends the rendezvous of all ranks because this one has run out of memory; returns the error.
  /// UCX 1.13 ends the process of a peer whose connection breaks while it is being made
  /// (uct/tcp/tcp_ep.c). So the worker serves the peers until they have found the error, for which
  /// they look every 100 ms.
  Error told(Worker& worker, const Error& why) noexcept {
    if (why.code() != Errc::resource_exhausted || std::exchange(has_told_, true)) return why;
    const Error error = rendezvous_.give_up(why);
    try {
      for (const auto limit = Deadline::after(300ms); !limit.expired();) worker.attend(20ms);
    } catch (...) {
    }
    return error;
  }

  const internal::RankLocation& own_location() const {
    return *locations_[static_cast<std::size_t>(init_.rank)];
  }

  void check_one_host() const {
    const auto& own = own_location().identity;
    for (int r = 0; r < init_.size; ++r) {
      const auto& host = locations_[static_cast<std::size_t>(r)]->identity;
      if (host.boot != own.boot || host.processes != own.processes)
        internal::failf(Errc::unsupported,
                        "group '{}': ucx:shm needs all ranks on one host and in one process "
                        "namespace; ranks {} and {} are not",
                        names_.group(), names_(init_.rank), names_(r));
    }
  }

  /// Exchanges an empty message with every peer. UCX connects only when a message is sent, and
  /// reports the end of a connection only after that.
  void shake_hands(Worker& worker) {
    internal::Hash slot;
    slot.add(std::string_view("handshake"));
    std::vector<Worker::Request> requests(2 * static_cast<std::size_t>(init_.size));
    for (int r = 0; r < init_.size; ++r) {
      if (r == init_.rank) continue;
      auto* const pair = &requests[2 * static_cast<std::size_t>(r)];
      worker.recv(pair[0], r, slot.value(), nullptr, 0);
      worker.send(pair[1], r, slot.value(), nullptr, 0, true);
    }
    try {
      for (auto& request : requests)
        if (request.peer >= 0) await(worker, request);
    } catch (...) {
      const Error error = told(worker, internal::to_error(std::current_exception()));
      worker.close();  // Before the requests are destroyed.
      throw Error(error);
    }
  }

  void await(Worker& worker, Worker::Request& request) {
    const std::atomic<bool> never{false};
    for (auto outcome = Worker::Outcome::late; outcome == Worker::Outcome::late;) {
      const auto soon = Deadline::after(100ms);
      const bool last = rendezvous_.limit().time() <= soon.time();
      outcome = worker.wait(request, last ? rendezvous_.limit() : soon, never);
      if (outcome == Worker::Outcome::ended && request.status == UCS_OK) return;
      rendezvous_.check();
      if (outcome != Worker::Outcome::late)
        fail_to_connect(request.peer, request.ended ? ucx_api().status_string(request.status)
                                                    : "the connection ended");
      if (last)
        throw Error(
            Errc::timeout,
            fmt::format("group '{}': rank {} got no answer from rank {} before the deadline",
                        names_.group(), names_(init_.rank), names_(request.peer)),
            {.rank = names_(request.peer)});
    }
  }

  const BackendInit& init_;
  const Transports& transports_;
  internal::Rendezvous rendezvous_{init_};
  const internal::GroupNames& names_ = rendezvous_.names();
  const internal::RankLocations locations_ = internal::locations_of(init_, rendezvous_);
  bool has_told_ = false;
};

}  // namespace

Process Process::own() {
  const auto id = ::getpid();
  return {id, start_of(id)};
}

bool Process::is_alive() const {
  return start_of(id) == start;
}

Connections rendezvous(const MeshInit& init, std::function<void(int peer)> ended) {
  if (init.group.size > most_ranks)
    internal::failf(Errc::unsupported, "group '{}': ucx connects at most {} ranks, not {}",
                    init.group.name, most_ranks, init.group.size);
  const auto& api = ucx_api();
  Connector connector(init);
  auto transports = init.transports;
  transports.dead_after = init.group.dead_after;
  transports.one_host = connector.is_on_one_host();
  std::shared_ptr<Worker> worker;
  Gate gate(transports, [&] {
    worker = std::make_shared<Worker>(api, init.group.rank, init.group.size, transports,
                                      init.group.logger, std::move(ended));
  });
  auto made = connector.connect(*worker, gate);
  made.worker = std::move(worker);
  return made;
}

}  // namespace tutti::backend::ucx
