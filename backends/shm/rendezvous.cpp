#include "rendezvous.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "backend/agreement.hpp"
#include "backend/waiting.hpp"
#include "host.hpp"
#include "layout.hpp"
#include "store/checks.hpp"
#include "unix_socket.hpp"
#include "values/bytes.hpp"
#include "values/cores.hpp"
#include "values/current_error.hpp"
#include "values/error_record.hpp"
#include "values/fail.hpp"
#include "values/host_identity.hpp"

namespace tutti::backend::shm {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

/// A waiting rank looks for processes that have died and at its deadline this often,
constexpr std::chrono::milliseconds pause_of_looks = 20ms;
/// and in the store for a rank that has given up this often.
constexpr std::chrono::milliseconds pause_of_requests = 200ms;

/// Counts the ranks that have begun to make a group of this name.
constexpr std::string_view arrivals = "shm/arrivals";

/// The data that a rank publishes in the store for its peers.
struct PeerInfo {
  std::uint32_t version = Layout::version;
  internal::HostIdentity host;
  std::int32_t process = 0;
  internal::Cores cores;
  std::string address{};  ///< Rank 0: its socket's.
  std::string error{};    ///< Rank 0: why there is no shared memory, of encode_error().
};

Bytes encode(const PeerInfo& info) {
  internal::Writer out;
  out.u32(info.version);
  out.text(info.host.boot).text(info.host.network).text(info.host.processes).text(info.host.users);
  out.text(info.host.user).i32(info.process);
  write(out, info.cores);
  out.text(info.address).text(info.error);
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
  info.host = {std::string(in.text()), std::string(in.text()), std::string(in.text()),
               std::string(in.text()), std::string(in.text())};
  info.process = in.i32();
  info.cores = internal::read_cores(in);
  info.address = in.text();
  info.error = in.text();
  in.end();
  return info;
}

// The keys, after the number of the group among those of its name:
//   rank/<r>   PeerInfo
//   failed     the first error of a rank that has given up
class Rendezvous {
 public:
  explicit Rendezvous(const BackendInit& init)
      : init_(init), limit_(Deadline::after(init.timeout)), made_(init.size) {
    // Every W arrivals form one group, so a name may be reused once the earlier group is complete.
    const auto arrival = init.size == 1 ? 1 : init.store->add(arrivals, 1);
    made_.store = make_prefix_store(init.store, fmt::format("shm/{}/", (arrival - 1) / init.size));
  }

  Membership run() {
    attempt([&] {
      if (init_.rank == 0) make_segment();
      exchange_infos();
    });
    check_hosts();  // All ranks find the same here.
    if (!infos_[0].error.empty()) throw Error(internal::decode_error(infos_[0].error));
    attempt([&] {
      open_processes();
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
      const bool is_mapped = made_.memory.segment != nullptr;
      if (is_mapped && !give_up()) return;
      const Error told(why.code(),
                       fmt::format("rank {} could not make group '{}': {}", init_.rank, init_.name,
                                   why.message()),
                       {.rank = why.where().rank < 0 ? init_.rank : why.where().rank});
      const auto first = publish(told);
      if (is_mapped) {
        made_.memory.break_group(init_.rank, first.value_or(told));
        wake();
      }
      throw Error(first.value_or(why));
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

  /// Publishes the error, unless another rank has done so before: returns the error of that rank.
  std::optional<Error> publish(const Error& told) const noexcept {
    try {
      // A write would wait for the timeout of a store that does not answer, a read does not.
      if (!answers()) return std::nullopt;
      const auto mine = internal::to_bytes(internal::encode_error(told));
      const auto held = made_.store->compare_set("failed", {}, mine);
      if (held != mine) return internal::decode_error(internal::to_text(held));
    } catch (...) {  // Without the store the others wait until their deadline.
    }
    return std::nullopt;
  }

  bool answers() const { return peek(*init_.store, arrivals).has_value(); }

  /// The value of a key, in bounded time even if the store does not answer.
  static std::optional<Bytes> peek(Store& store, std::string_view key) {
    try {
      return store.get(key, Deadline::after({}));
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
      return std::nullopt;
    }
  }

  /// Throws the error of a rank that has given up.
  void look_for_failure() {
    next_request_ = Clock::now() + pause_of_requests;
    if (const auto failed = peek(*made_.store, "failed"))
      throw Error(internal::decode_error(internal::to_text(*failed)));
  }

  /// Throws if the group cannot be made any more, late() at the deadline.
  template <typename Late>
  void look(const Late& late) {
    auto events = watched_;
    (void)::poll(events.data(), events.size(), 0);
    for (std::size_t r = 0; r < events.size(); ++r)
      if (events[r].revents != 0) throw Error(dead_error(static_cast<int>(r)));
    if (Clock::now() >= next_request_) look_for_failure();
    if (limit_.expired()) throw Error(late());
  }

  // --- Finding the other ranks ---

  void make_segment() {
    try {
      if (init_.size > 1) listener_ = listen_anywhere(init_.size, mine_.address);
      const auto bytes = made_.memory.layout().bytes();
      // Some MiB; the figures of available memory may leave out what the kernel would free.
      file_ = make_file(bytes, {.available = {}});
      made_.memory.segment = Segment::map(file_, bytes);
      made_.memory.construct();
    } catch (const Error& error) {
      mine_.error = internal::encode_error({error.code(), error.message(), {.rank = 0}});
    }
  }

  static std::string key(int rank) { return fmt::format("rank/{}", rank); }
  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(init_.size); }

  void exchange_infos() {
    mine_.host = internal::host_identity();
    mine_.process = ::getpid();
    mine_.cores = internal::usable_cores();
    made_.store->set(key(init_.rank), encode(mine_));
    std::vector<internal::Cores> cores;
    for (int r = 0; r < init_.size; ++r) {
      infos_.push_back(decode(await_info(r), r));
      made_.ids.push_back(infos_.back().process);
      cores.push_back(infos_.back().cores);
    }
    made_.cores = count_cores(cores);
  }

  Bytes await_info(int rank) {
    for (std::chrono::nanoseconds pause = pause_of_looks;; pause = std::min(2 * pause, longest())) {
      const auto turn = Deadline::after(pause);
      const bool last = limit_.time() <= turn.time();
      try {
        return made_.store->get(key(rank), last ? limit_ : turn);
      } catch (const Error& error) {
        if (error.code() != Errc::timeout) throw;
        if (last && !answers()) throw;
      }
      look_for_failure();
      if (last) throw internal::rendezvous_error(*made_.store, "rank/", init_.name, init_.size);
    }
  }
  static constexpr std::chrono::nanoseconds longest() { return 1s; }

  void check_hosts() const {
    for (std::size_t r = 1; r < infos_.size(); ++r)
      if (const auto differs = internal::difference(infos_[0].host, infos_[r].host);
          !differs.empty())
        internal::failf(Errc::unsupported,
                        "group '{}': the backend shm needs all ranks on one host, but ranks 0 and "
                        "{} differ in {}; choose gloo",
                        init_.name, r, differs);
  }

  /// Before this rank joins: until then its peers wait for it, so the numbers are still theirs.
  void open_processes() {
    made_.processes.resize(infos_.size());
    for (std::size_t r = 0; r < infos_.size(); ++r) {
      auto& process = made_.processes[r];
      if (infos_[r].process != ::getpid()) {
        process = process_descriptor(infos_[r].process);
        if (!process.is_open() && errno == ESRCH) throw Error(dead_error(static_cast<int>(r)));
        if (!process.is_open())
          internal::failf(code_of_errno(errno), "shm: cannot watch the process of rank {}: {}", r,
                          std::strerror(errno));
      }
      watched_.push_back({process.get(), POLLIN, 0});
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
      if (made_.memory.of(r).joined.load(std::memory_order_relaxed) == 0) missing.push_back(r);
    return {Errc::timeout,
            fmt::format("group '{}': {} of {} ranks have mapped the shared memory before the "
                        "deadline; missing: {}",
                        init_.name, init_.size - std::ssize(missing), init_.size,
                        internal::list_ranks(missing)),
            {.rank = missing.empty() ? -1 : missing.front(), .missing = missing}};
  }

  /// Serves the other ranks until all have joined. Ignores connections of other processes.
  void pass_segment() {
    join();
    std::vector<Descriptor> peers;  // A rank closes its connection when it has joined.
    while (!is_complete()) {
      look([&] { return late(); });
      auto events = watched_;  // A process that dies ends the pause.
      events.push_back({listener_.get(), POLLIN, 0});
      for (const auto& peer : peers) events.push_back({peer.get(), POLLIN, 0});
      (void)::poll(events.data(), events.size(), pause());
      const auto first = watched_.size() + 1;
      for (std::size_t i = peers.size(); i-- > 0;)
        if (events[first + i].revents != 0) peers.erase(peers.begin() + static_cast<long>(i));
      auto peer = accept_connection(listener_);
      const bool is_known =
          peer.is_open() &&
          std::any_of(infos_.begin() + 1, infos_.end(), [&](const PeerInfo& info) {
            return is_process(peer, info.process, info.host.user);
          });
      if (is_known && send_file(peer, file_)) peers.push_back(std::move(peer));
    }
  }
  int pause() const {
    const auto time = std::min<std::chrono::nanoseconds>(limit_.remaining(), pause_of_looks);
    return static_cast<int>(time / 1ms) + 1;
  }

  void fetch_segment() {
    const auto not_passed = [&] {
      return Error(
          Errc::timeout,
          fmt::format("group '{}': rank 0 did not pass the shared memory before the deadline",
                      init_.name),
          {.rank = 0});
    };
    for (Descriptor file; !file.is_open();) {
      look(not_passed);
      auto socket = connect_to(infos_[0].address);
      if (!socket) {
        look_for_failure();
        throw Error(Errc::peer_lost, "rank 0 does not wait for the other ranks any more",
                    {.rank = 0});
      }
      if (!socket->is_open()) {  // Many connections wait.
        std::this_thread::sleep_for(1ms);
        continue;
      }
      if (!is_process(*socket, infos_[0].process, infos_[0].host.user))
        internal::failf(Errc::backend, "shm: the process that listens for rank 0 is not rank 0");
      for (pollfd event{socket->get(), POLLIN, 0}; event.revents == 0;) {
        look(not_passed);
        (void)::poll(&event, 1, pause());
      }
      file = receive_file(*socket);
      if (!file.is_open()) {
        std::this_thread::sleep_for(1ms);  // The connection has ended.
        continue;
      }
      made_.memory.segment = Segment::map(file, made_.memory.layout().bytes());
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
      internal::futex_wait(joined, now,
                           std::min<std::chrono::nanoseconds>(limit_.remaining(), pause_of_looks),
                           internal::Sharing::processes);
    }
  }

  const BackendInit& init_;
  const Deadline limit_;
  PeerInfo mine_;
  std::vector<PeerInfo> infos_;
  Descriptor listener_;
  Descriptor file_;
  std::vector<pollfd> watched_;  // The processes of the other ranks.
  Clock::time_point next_request_{};
  Membership made_;
};

}  // namespace

Error dead_error(int rank) {
  return {Errc::peer_lost, fmt::format("the process of rank {} has died", rank), {.rank = rank}};
}

Membership rendezvous(const BackendInit& init) {
  return Rendezvous(init).run();
}

}  // namespace tutti::backend::shm
