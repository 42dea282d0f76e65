#include "run/rendezvous.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/error.hpp>
#include <tutti/init.hpp>

#include "common/duration.hpp"
#include "common/exit_code.hpp"
#include "common/host.hpp"

namespace tutti::tool {
namespace {

using namespace std::chrono_literals;

/// How often a launcher looks whether this node has something to tell.
constexpr auto slice = 100ms;
constexpr auto connect_slice = 500ms;
constexpr auto heartbeat = 1s;
/// Without a sign of life for so long, a node has gone.
constexpr auto lost_after = 15s;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A port that is free now, for any address of this host.
int free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket || ::bind(socket.get(), generic, size) != 0 ||
      ::getsockname(socket.get(), generic, &size) != 0)
    throw Failure(Exit::unavailable, "cannot find a free TCP port");
  return ntohs(address.sin_port);
}

}  // namespace

Rendezvous::Rendezvous(const LaunchOptions& options)
    : options_(options),
      join_deadline_(options.join_timeout),
      changed_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (options_.nodes > 1) {
    address_ = "tcp://" + options_.rendezvous;
    host_ = options_.rendezvous.substr(0, options_.rendezvous.rfind(':'));
    if (host_.starts_with('[')) host_ = host_.substr(1, host_.size() - 2);
    thread_ = std::thread([this] { talk(); });
    return;
  }
  try {
    server_ = std::make_unique<StoreServer>(StoreServerOptions{.host = host_});
  } catch (const Error& error) {
    throw Failure(Exit::unavailable,
                  fmt::format("cannot host the store of the ranks: {}", error.what()));
  }
  address_ = fmt::format("tcp://{}:{}", host_, server_->port());
  set_assignment({0, options_.ranks, address_, host_, free_port()});
}

Rendezvous::~Rendezvous() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Rendezvous::clear_changed() const {
  std::uint64_t times = 0;
  (void)!::read(changed_.get(), &times, sizeof times);
}

std::optional<RankAssignment> Rendezvous::assignment() const {
  const std::lock_guard lock(mutex_);
  return assignment_;
}

std::optional<ExitStatus> Rendezvous::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

bool Rendezvous::stopping() const {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

void Rendezvous::report(const ExitStatus& mine) {
  if (options_.nodes == 1) return set_status(mine);
  const std::lock_guard lock(mutex_);
  if (!mine_) mine_ = mine;
}

void Rendezvous::set_assignment(const RankAssignment& assignment) {
  const std::lock_guard lock(mutex_);
  assignment_ = assignment;
  const std::uint64_t once = 1;
  (void)!::write(changed_.get(), &once, sizeof once);
}

void Rendezvous::set_status(const ExitStatus& status) {
  const std::lock_guard lock(mutex_);
  if (!status_) status_ = status;
  const std::uint64_t once = 1;
  (void)!::write(changed_.get(), &once, sizeof once);
}

void Rendezvous::talk() {
  const int unavailable = static_cast<int>(Exit::unavailable);
  try {
    const auto connection = open();
    if (connection == nullptr) return;
    const auto store = make_prefix_store(connection, "launch/");
    try {
      meet(*store);
    } catch (const Failure& failure) {  // The others wait for the same, in vain.
      const auto text = fmt::format("{} {}", static_cast<int>(failure.code()), failure.what());
      (void)store->compare_set("refused", {}, bytes_of(text));
      throw;
    }
    if (assignment()) watch(*store);
  } catch (const Failure& failure) {
    set_status({static_cast<int>(failure.code()), failure.what()});
  } catch (const Error& error) {
    set_status({unavailable, fmt::format("node {} and the store at {}: {}", options_.node, address_,
                                         error.message())});
  }
}

std::shared_ptr<Store> Rendezvous::open() {
  // As ranks do, with a rank per node: that of node 0 hosts the store and leaves last.
  if (options_.node == 0)
    return open_store(ClusterInfo{.rank = 0, .size = options_.nodes, .store = address_},
                      lost_after);
  while (!stopping()) {
    try {
      (void)open_store(address_, connect_slice);
      return open_store(address_,
                        lost_after);  // Its answers may take longer than this thread's end.
    } catch (const Error& error) {
      // Node 0 may not be up yet. Anything else will not get better.
      if (error.code() != Errc::timeout || join_deadline_.expired()) throw;
    }
  }
  return nullptr;
}

std::optional<std::string> Rendezvous::get(Store& store, const std::string& key) {
  while (!stopping() && !join_deadline_.expired()) {
    try {
      return store.get_text(key, slice);
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
    }
    if (const auto why = store.try_get("refused")) {
      const auto text = text_of(*why);
      throw Failure(static_cast<Exit>(std::stoi(text)), text.substr(text.find(' ') + 1));
    }
  }
  return std::nullopt;
}

void Rendezvous::meet(Store& store) {
  const auto self = this_host();
  if (options_.node == 0) store.set("master_port", std::to_string(free_port()));
  // "nodes ranks who": the launchers must agree about the first.
  const auto mine =
      fmt::format("{} {} {} pid {}", options_.nodes, options_.ranks, self.name, self.pid);
  const auto who = [](const std::string& text) {
    return text.substr(text.find(' ', text.find(' ') + 1) + 1);
  };
  const auto key = [](int node) { return fmt::format("node/{}", node); };
  const auto there = text_of(store.compare_set(key(options_.node), {}, bytes_of(mine)));
  if (there != mine)
    throw Failure(Exit::usage,
                  fmt::format("there are two of --node-rank {}: {} and {}; each node needs its own",
                              options_.node, who(there), who(mine)));
  RankAssignment assignment{0, 0, address_, host_, 0};
  for (int node = 0; node < options_.nodes; ++node) {
    const auto text = get(store, key(node));
    if (!text && stopping()) return;
    if (!text)
      throw Failure(Exit::unavailable,
                    fmt::format("node {} of {} did not come within {}", node, options_.nodes,
                                format_duration(options_.join_timeout)));
    const int nodes = std::stoi(*text);
    const int ranks = std::stoi(text->substr(text->find(' ') + 1));
    if (nodes != options_.nodes)
      throw Failure(Exit::usage,
                    fmt::format("node {} ({}) was started with --nnodes {}, and node "
                                "{} with --nnodes {}",
                                node, who(*text), nodes, options_.node, options_.nodes));
    if (node < options_.node) assignment.first_rank += ranks;
    assignment.size += ranks;
  }
  const auto port = get(store, "master_port");
  if (!port) return;
  assignment.master_port = std::stoi(*port);
  set_assignment(assignment);
}

void Rendezvous::watch(Store& store) {
  const auto alive = [](int node) { return fmt::format("alive/{}", node); };
  std::map<int, std::pair<std::string, Deadline>> others;  // Node 0 looks after them.
  if (options_.node == 0)
    for (int node = 1; node < options_.nodes; ++node) others[node] = {"", lost_after};
  const auto decide = [&](const ExitStatus& status) {
    const auto text = fmt::format("{} {}", status.code, status.text);
    (void)store.compare_set("status", {}, bytes_of(text));
  };
  Deadline next_beat = 0s;
  bool told = false;
  while (!stopping()) {
    std::optional<ExitStatus> mine;
    {
      const std::lock_guard lock(mutex_);
      mine = mine_;
    }
    if (mine && !told) {
      told = true;
      if (mine->code != 0 || store.add("ended", 1) == options_.nodes) decide(*mine);
    }
    if (next_beat.expired()) {
      next_beat = heartbeat;
      (void)store.add(alive(options_.node), 1);
      for (auto& [node, last] : others) {
        const auto now = store.try_get(alive(node)).value_or(Bytes{});
        if (text_of(now) != last.first)
          last = {text_of(now), lost_after};
        else if (last.second.expired())
          decide({static_cast<int>(Exit::unavailable),
                  fmt::format("node {} has not been heard of for {} s", node, lost_after.count())});
      }
    }
    try {
      const auto text = store.get_text("status", slice);
      return set_status({std::stoi(text), text.substr(text.find(' ') + 1)});
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
    }
  }
}

}  // namespace tutti::tool
