#include "rendezvous.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "backend/rank_location.hpp"
#include "backend/rendezvous.hpp"
#include "values/bytes.hpp"
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
};

std::uint64_t checksum(std::string_view text) {
  internal::Hash hash;
  hash.add(text);
  return hash.value();
}

Bytes encode(const PeerInfo& info) {
  internal::Writer out;
  out.i64(info.process.id).u64(info.process.start);
  out.text(info.address).u64(checksum(info.address));
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
  Connector(const BackendInit& init, const Transports& transports)
      : init_(init), transports_(transports) {}

  mesh::Connected<Worker> connect(std::shared_ptr<Worker> worker) {
    const PeerInfo own{Process::own(), worker->address()};
    const auto infos = rendezvous_.exchange("ucx/address", encode(own));
    std::vector<PeerInfo> peers;
    for (int r = 0; r < init_.size; ++r)
      peers.push_back(decode(infos[static_cast<std::size_t>(r)], names_(r)));
    if (!transports_.report_ends) check_one_host();
    std::vector<internal::Cores> here;
    for (const auto& location : locations_)
      if (location->identity.boot == own_location().identity.boot) here.push_back(location->cores);
    worker->set_polling(here.size(), internal::count_cores(here));
    for (int r = 0; r < init_.size; ++r)
      if (r != init_.rank && !worker->connect(r, peers[static_cast<std::size_t>(r)].address))
        internal::failf(Errc::unsupported,
                        "group '{}': ucx has no transport from rank {} to rank {}; without "
                        "InfiniBand or RoCE use tcp between hosts, and ucx:shm or shm within one",
                        names_.group(), names_(init_.rank), names_(r));
    shake_hands(*worker);
    // Checked mode compares the records of a message while its two sides wait for each other.
    if (init_.checked) worker->set_synchronous();
    mesh::Connected<Worker> made{.transport = worker->transports()};
    std::vector<Process> processes;
    for (int r = 0; r < init_.size; ++r) {
      processes.push_back(peers[static_cast<std::size_t>(r)].process);
      if (locations_[static_cast<std::size_t>(r)]->serves_store) made.server = r;
    }
    if (!transports_.report_ends) worker->set_processes(std::move(processes));
    made.links = std::move(worker);
    return made;
  }

 private:
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
      worker.close();  // Before the requests are destroyed.
      throw;
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
        internal::failf(
            Errc::backend, "group '{}': rank {} cannot connect to rank {}: {}", names_.group(),
            names_(init_.rank), names_(request.peer),
            request.ended ? ucx_api().status_string(request.status) : "the connection ended");
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
};

}  // namespace

Process Process::own() {
  const auto id = ::getpid();
  return {id, start_of(id)};
}

bool Process::is_alive() const {
  return start_of(id) == start;
}

mesh::Connected<Worker> rendezvous(const BackendInit& init, const Transports& transports,
                                   std::function<void(int peer)> ended) {
  if (init.size > most_ranks)
    internal::failf(Errc::unsupported, "group '{}': ucx connects at most {} ranks, not {}",
                    init.name, most_ranks, init.size);
  const auto& api = ucx_api();
  Connector connector(init, transports);
  return connector.connect(std::make_shared<Worker>(api, init.rank, init.size, transports,
                                                    init.logger, std::move(ended)));
}

}  // namespace tutti::backend::ucx
