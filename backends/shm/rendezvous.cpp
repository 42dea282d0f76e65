#include "rendezvous.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "backend/rank_location.hpp"
#include "backend/record.hpp"
#include "backend/rendezvous.hpp"
#include "backend/waiting.hpp"
#include "host.hpp"
#include "memory/segment.hpp"
#include "unix_socket.hpp"
#include "values/bytes.hpp"
#include "values/cores.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"

namespace tutti::backend::shm {
namespace {

using namespace std::chrono_literals;

/// A waiting rank looks for processes that have died and at its deadline this often.
constexpr std::chrono::milliseconds time_of_looks = 20ms;
/// The most connections that rank 0 has while it passes the memory, per rank.
constexpr std::size_t most_connections = 4;

/// The data that a rank publishes in the store for its peers.
struct PeerInfo {
  std::uint32_t version = Layout::version;
  std::string address{};  ///< Its socket's; empty if no rank needs it.
  std::string proof{};    ///< What a peer sends that asks for the shared memory.
};

Bytes encode(const PeerInfo& info) {
  internal::Writer out;
  out.u32(info.version).text(info.address).text(info.proof);
  return out.take();
}

PeerInfo decode(const Bytes& bytes, int rank) {
  const auto what = fmt::format("shm: the description of rank {} in the store", rank);
  internal::Reader in(bytes, Errc::backend, what);
  PeerInfo info;
  info.version = in.u32();
  if (info.version != Layout::version)
    internal::failf(Errc::mismatch,
                    "shm: rank {} has version {} of the shared memory's layout, this rank has {}; "
                    "run the same version of tutti on every rank",
                    rank, info.version, Layout::version);
  info.address = in.text();
  info.proof = in.text();
  in.end();
  return info;
}

class Assembly {
 public:
  Assembly(const BackendInit& init, std::function<void()> watch)
      : init_(init), rendezvous_(init, std::move(watch)), made_(init.size) {}

  Membership run() {
    attempt([&] {
      if (init_.rank == 0) make_segment();
      locations_ = internal::locations_of(init_, rendezvous_);
    });
    check_hosts();  // All ranks find the same here.
    attempt([&] {
      list_processes();
      open_processes(true);
      exchange_infos();
      open_processes(false);
      if (init_.rank == 0)
        pass_segment();
      else
        fetch_segment();
    });
    return std::move(made_);
  }

 private:
  // --- Errors ---

  /// Runs a part. Its error is told to the other ranks, unless the group is complete: either all
  /// ranks make the group, or none does.
  template <typename Part>
  void attempt(const Part& part) {
    try {
      part();
    } catch (...) {
      const Error why = internal::to_error(std::current_exception());
      const bool is_mapped = made_.memory.data != nullptr;
      if (is_mapped && !give_up()) return;
      const Error first = rendezvous_.give_up(why);
      if (is_mapped) {
        made_.memory.break_group(init_.rank, first);
        wake();
      }
      throw Error(first);
    }
  }

  /// Marks that this rank does not wait for the others. False if the group is complete.
  bool give_up() const noexcept {
    auto& joined = made_.memory.group().joined;
    // Sequentially consistent by default, once per group: one of two ranks that complete the group
    // and give it up at the same time comes first, for all ranks.
    auto now = joined.load();
    while (now != size())
      if (joined.compare_exchange_weak(now, now | given_up)) return true;
    return false;
  }

  /// Throws if the group cannot be made any more, late() at the deadline.
  template <typename Late>
  void look(const Late& late) {
    look_at_processes();
    rendezvous_.check();
    if (rendezvous_.limit().expired()) throw Error(late());
  }

  void look_at_processes() {
    // Connections to ranks other than 0 serve the descriptor of the process alone.
    while (init_.rank != 0 && listener_.is_open() && accept_connection(listener_).is_open()) {
    }
    auto events = watched_;
    (void)::poll(events.data(), events.size(), 0);
    for (std::size_t r = 0; r < events.size(); ++r)
      if (events[r].revents != 0) throw Error(dead_error(names_, static_cast<int>(r)));
  }

  // --- Finding the other ranks ---

  void make_segment() {
    if (init_.size > 1) listener_ = listen_anywhere(init_.size, mine_.address);
    mine_.proof = random_text();
    const auto bytes = made_.memory.layout().bytes();
    // Some MiB; the figures of available memory may leave out what the kernel would free.
    file_ = make_file(bytes, {.available = {}});
    use(Segment::map(file_, bytes));
    made_.memory.construct();
  }

  void use(const std::shared_ptr<Segment>& segment) {
    made_.memory.data = std::shared_ptr<std::byte>(segment, segment->data());
  }

  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(init_.size); }

  void exchange_infos() {
    const auto infos =
        rendezvous_.exchange("shm/rank", encode(mine_), [this] { look_at_processes(); });
    std::vector<internal::Cores> cores;
    for (int r = 0; r < init_.size; ++r) {
      const auto& location = *locations_[static_cast<std::size_t>(r)];
      infos_.push_back(decode(infos[static_cast<std::size_t>(r)], names_(r)));
      cores.push_back(location.cores);
    }
    made_.cores = count_cores(cores);
  }

  void check_hosts() const {
    auto first = locations_[0]->identity;
    for (const auto& location : locations_)
      first.sees_peers = first.sees_peers && location->identity.sees_peers;
    for (std::size_t r = 1; r < locations_.size(); ++r)
      if (const auto differs = internal::difference(first, locations_[r]->identity);
          !differs.empty())
        internal::failf(Errc::unsupported,
                        "group '{}': the backend shm needs all ranks on one host, but ranks {} and "
                        "{} differ in {}; choose tcp",
                        names_.group(), names_(0), names_(static_cast<int>(r)), differs);
  }

  /// Numbers of processes mean others in another process namespace. If ranks are in several, each
  /// listens, so that its peers get a descriptor of its process.
  void list_processes() {
    const auto& own = locations_[static_cast<std::size_t>(init_.rank)]->identity;
    bool sees_all = true;
    for (const auto& location : locations_) {
      const bool sees = location->identity.processes == own.processes;
      sees_all = sees_all && sees;
      made_.ids.push_back(sees ? location->process : -location->process);
    }
    if (!sees_all && !listener_.is_open()) listener_ = listen_anywhere(init_.size, mine_.address);
    made_.processes.resize(locations_.size());
    watched_.resize(locations_.size(), {-1, POLLIN, 0});
  }

  /// Before this rank joins: until then its peers wait for it, so the numbers are still theirs.
  void open_processes(bool by_number) {
    for (std::size_t r = 0; r < locations_.size(); ++r) {
      const int id = made_.ids[r];
      if (id == ::getpid() || by_number != (id > 0)) continue;
      auto& process = made_.processes[r];
      process = by_number ? process_descriptor(id) : process_of_listener(r);
      // EINVAL: the process of the listener has ended, and a forked child holds the socket.
      if (!process.is_open() && (errno == ESRCH || (!by_number && errno == EINVAL)))
        throw Error(dead_error(names_, static_cast<int>(r)));
      if (!process.is_open())
        internal::failf(code_of_errno(errno), "shm: cannot watch the process of rank {}: {}",
                        names_(static_cast<int>(r)), std::strerror(errno));
      watched_[r].fd = process.get();
    }
  }

  Descriptor process_of_listener(std::size_t rank) {
    const int r = static_cast<int>(rank);
    const auto socket = connect_to_rank(r);
    if (!is_process(socket, made_.ids[rank], locations_[rank]->identity.user))
      internal::failf(Errc::backend, "shm: another user listens for rank {}", names_(r));
    return Descriptor(internal::peer_process(socket.get()));
  }

  /// Waits while many connections wait there.
  Descriptor connect_to_rank(int rank) {
    for (;; std::this_thread::sleep_for(1ms)) {
      look([&] { return not_passed(rank); });
      auto socket = connect_to(infos_[static_cast<std::size_t>(rank)].address);
      if (!socket) {
        rendezvous_.check();
        throw Error(Errc::peer_lost,
                    fmt::format("rank {} does not wait for the other ranks any more", names_(rank)),
                    {.rank = names_(rank)});
      }
      if (socket->is_open()) return std::move(*socket);
    }
  }

  // --- The segment ---

  /// Counts this rank, which has mapped the segment.
  void join() {
    // Relaxed: read by a rank that names the missing ones.
    made_.memory.of(init_.rank).joined.store(1, std::memory_order_relaxed);
    made_.memory.group().joined.fetch_add(1);  // See give_up().
    wake();
  }
  bool is_complete() const noexcept { return made_.memory.group().joined.load() == size(); }
  void wake() const noexcept {
    internal::futex_wake(made_.memory.group().joined, internal::Sharing::processes);
  }

  Error late() const {
    std::vector<int> missing;
    for (int r = 0; r < init_.size; ++r)
      if (made_.memory.of(r).joined.load(std::memory_order_relaxed) == 0)
        missing.push_back(names_(r));
    return {Errc::timeout,
            fmt::format("group '{}': {} of {} ranks have mapped the shared memory before the "
                        "deadline; missing: {}",
                        names_.group(), init_.size - std::ssize(missing), init_.size,
                        internal::list_ranks(missing)),
            {.rank = missing.empty() ? -1 : missing.front(), .missing = missing}};
  }

  struct Peer {
    Descriptor socket;
    bool is_served = false;
  };

  /// Serves the other ranks until all have joined. Ignores connections of other processes, and
  /// gives nothing without the proof: other processes of the user may be in another container.
  void pass_segment() {
    join();
    std::vector<Peer> peers;  // A rank closes its connection when it has joined.
    while (!is_complete()) {
      look([&] { return late(); });
      auto events = watched_;  // A process that dies ends the pause.
      events.push_back({listener_.get(), POLLIN, 0});
      for (const auto& peer : peers) events.push_back({peer.socket.get(), POLLIN, 0});
      (void)::poll(events.data(), events.size(), pause());
      const auto first = watched_.size() + 1;
      for (std::size_t i = peers.size(); i-- > 0;) {
        auto& peer = peers[i];
        if (events[first + i].revents == 0) continue;
        const bool was_served = std::exchange(peer.is_served, true);
        if (was_served || !receive_proof(peer.socket, mine_.proof) ||
            !send_file(peer.socket, file_))
          peers.erase(peers.begin() + static_cast<long>(i));
      }
      auto socket = accept_connection(listener_);
      bool is_known = false;
      for (std::size_t r = 1; r < locations_.size() && socket.is_open() && !is_known; ++r)
        is_known = is_process(socket, made_.ids[r], locations_[r]->identity.user);
      if (!is_known) continue;
      // A rank whose connection ends asks again.
      if (peers.size() == most_connections * size()) peers.erase(peers.begin());
      peers.push_back({std::move(socket)});
    }
  }
  int pause() const {
    const auto time =
        std::min<std::chrono::nanoseconds>(rendezvous_.limit().remaining(), time_of_looks);
    return static_cast<int>(time / 1ms) + 1;
  }

  Error not_passed(int rank) const {
    return {Errc::timeout,
            fmt::format("group '{}': rank {} did not pass the shared memory before the deadline",
                        names_.group(), names_(rank)),
            {.rank = names_(rank)}};
  }

  void fetch_segment() {
    const auto late_root = [&] { return not_passed(0); };
    for (Descriptor file; !file.is_open();) {
      const auto socket = connect_to_rank(0);
      if (!is_process(socket, made_.ids[0], locations_[0]->identity.user))
        internal::failf(Errc::backend, "shm: the process that listens for rank {} is another one",
                        names_(0));
      (void)send_proof(socket, infos_[0].proof);
      for (pollfd event{socket.get(), POLLIN, 0}; event.revents == 0;) {
        look(late_root);
        (void)::poll(&event, 1, pause());
      }
      file = receive_file(socket);
      if (!file.is_open()) {
        std::this_thread::sleep_for(1ms);  // The connection has ended.
        continue;
      }
      use(Segment::map(file, made_.memory.layout().bytes()));
      join();
    }
    await_ranks();
  }

  void await_ranks() {
    auto& joined = made_.memory.group().joined;
    while (!is_complete()) {
      const auto now = joined.load();  // See give_up().
      if ((now & given_up) != 0)
        if (const auto cause = made_.memory.cause()) throw Error(*cause);
      look([&] { return late(); });
      internal::futex_wait(
          joined, now,
          std::min<std::chrono::nanoseconds>(rendezvous_.limit().remaining(), time_of_looks),
          internal::Sharing::processes);
    }
  }

  const BackendInit& init_;
  internal::GroupNames names_{init_.name, init_.whole};
  internal::Rendezvous rendezvous_;
  PeerInfo mine_;
  internal::RankLocations locations_;
  std::vector<PeerInfo> infos_;
  Descriptor listener_;
  Descriptor file_;
  std::vector<pollfd> watched_;  // The processes of the other ranks.
  Membership made_;
};

}  // namespace

std::shared_ptr<Member> join(const BackendInit& init, std::function<void()> watch) {
  auto made = Assembly(init, std::move(watch)).run();
  const auto memory = made.memory;
  try {
    return std::make_shared<Member>(init, std::move(made));
  } catch (...) {  // The other ranks have a group already.
    (void)memory.break_group(init.rank, internal::to_error(std::current_exception()));
    throw;
  }
}

}  // namespace tutti::backend::shm
