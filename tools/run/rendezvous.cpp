#include "run/rendezvous.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>

#include <fmt/format.h>

#include <tutti/error.hpp>
#include <tutti/init.hpp>
#include <tutti/log.hpp>

#include "common/duration.hpp"
#include "common/exit_code.hpp"
#include "common/host.hpp"
#include "common/message.hpp"

namespace tutti::tool {
namespace {

using namespace std::chrono_literals;

/// The interval at which a launcher checks whether its node has a report.
constexpr auto slice = 100ms;
constexpr auto connect_slice = 500ms;
/// The time until a node that does not reach node 0 says why, and until it says so again.
constexpr auto first_warning = 10s;
constexpr auto next_warning = 1min;
constexpr auto heartbeat = 1s;
/// A node without a sign of life for this time is lost.
constexpr auto lost_after = 15s;

/// The message of a node's launcher to the others.
struct Node {
  int nodes = 0;  ///< Number of nodes, equal on all nodes.
  int ranks = 0;
  int free_port = 0;
  std::string where{};  ///< "host pid 4411".
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Node, nodes, ranks, free_port, where)

std::string key_of_node(int node) {
  return fmt::format("node/{}", node);
}

/// Sets a key if it is missing and returns its value, the same on all nodes.
std::string set_once(Store& store, std::string_view key, const std::string& text) {
  const Bytes held = store.compare_set(key, {}, std::as_bytes(std::span(text)));
  return {reinterpret_cast<const char*>(held.data()), held.size()};
}

/// Returns the value of a key; empty if it is missing after a slice.
std::optional<std::string> await(Store& store, std::string_view key) {
  try {
    return store.get_text(key, slice);
  } catch (const Error& error) {
    if (error.code() != Errc::timeout) throw;
    return std::nullopt;
  }
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The name of the job, as the ranks read it.
std::string job() {
  return variable("TUTTI_JOB");
}

/// A port that is currently free, on any address of this host; one of TUTTI_PORTS if it is set.
int free_port() {
  // A server reads TUTTI_PORTS, but its thread takes a millisecond. The token keeps others out.
  if (!variable("TUTTI_PORTS").empty()) {
    const auto token = StoreToken::available() ? StoreToken::random() : StoreToken();
    return StoreServer(StoreServerOptions{.host = "*", .token = token}).port();
  }
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

/// A file without a name that holds the token, which only this user can read. In memory, or in a
/// directory if the system forbids that.
Descriptor hold(std::string_view text) {
  auto file = make_unnamed_file();
  const int forbidden = errno;
  for (const char* directory : std::array<const char*, 2>{"/dev/shm", std::getenv("TMPDIR")})
    if (!file && directory != nullptr) file = make_unnamed_file(directory);
  if (!file)
    throw Failure(Exit::unavailable,
                  fmt::format("cannot keep the token of the job: memfd_create is not permitted "
                              "({}), and /dev/shm and TMPDIR take no unnamed file ({}); set "
                              "TUTTI_TOKEN_FILE to a file with a token (openssl rand -hex 32 > "
                              "FILE; chmod 600 FILE)",
                              std::strerror(forbidden), std::strerror(errno)));
  if (::fchmod(file.get(), S_IRUSR) != 0 ||
      ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw Failure(Exit::unavailable,
                  fmt::format("cannot keep the token of the job: {}", std::strerror(errno)));
  return file;
}

}  // namespace

JobToken::JobToken(const LaunchOptions& options) : file_(options.token_file) {
  try {
    const auto of_environment = StoreToken::file_of_environment();
    if (file_.empty()) file_ = of_environment;
    const bool given = !file_.empty();
    if (given)
      token_ = StoreToken::read(file_);
    else if (options.nodes == 1 && StoreToken::available())
      token_ = StoreToken::random();
    // A pipe gives its bytes to this process alone, and /dev/stdin is another file in a rank.
    std::error_code none;
    const bool is_own = file_.starts_with("/dev/") || file_.starts_with("/proc/self/");
    if (!token_ || (given && !is_own && std::filesystem::is_regular_file(file_, none))) return;
    held_ = hold(token_.text());
    file_ = fmt::format("/proc/{}/fd/{}", ::getpid(), held_.get());
  } catch (const Error& error) {
    throw Failure(Exit::usage, error.message());
  }
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ExitStatus, code, text)

ExitStatus exit_status(const Failure& failure) {
  return {static_cast<int>(failure.code()), failure.what()};
}

template <typename T>
void Rendezvous::publish(std::optional<T>& first, const T& value) {
  const std::lock_guard lock(mutex_);
  if (!first) first = value;
  const std::uint64_t once = 1;
  (void)!::write(changed_.get(), &once, sizeof once);
}

Rendezvous::Rendezvous(const LaunchOptions& options)
    : options_(options),
      token_(options),
      join_deadline_(options.join_timeout),
      changed_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (options_.nodes > 1) {
    address_ = "tcp://" + options_.rendezvous;
    host_ = options_.rendezvous.substr(0, options_.rendezvous.rfind(':'));
    if (host_.starts_with('[')) host_ = host_.substr(1, host_.size() - 2);
    thread_ = std::jthread([this](const std::stop_token& stop) { talk(stop); });
    return;
  }
  try {
    server_ = std::make_unique<StoreServer>(StoreServerOptions{
        .host = host_, .token = token_.token(), .job = job(), .size = options_.ranks});
    address_ = fmt::format("tcp://{}:{}", host_, server_->port());
  } catch (const Error& error) {
    throw Failure(Exit::unavailable,
                  fmt::format("cannot host the store of the ranks: {}", error.what()));
  }
  try {
    publish(assignment_, {0, options_.ranks, address_, token_.file(), host_, free_port()});
  } catch (const Error& error) {
    throw Failure(Exit::unavailable, fmt::format("no port for MASTER_PORT: {}", error.what()));
  }
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

void Rendezvous::report(const ExitStatus& mine) {
  if (options_.nodes == 1) return publish(status_, mine);
  const std::lock_guard lock(mutex_);
  if (!mine_) mine_ = mine;
}

void Rendezvous::talk(const std::stop_token& stop) {
  try {
    const auto connection = open(stop);
    if (connection == nullptr) return;
    const auto store = make_prefix_store(connection, "launch/");
    try {
      assign(stop, *store);
    } catch (const Failure& failure) {
      // Publishes the refusal, because the other nodes would wait until the join timeout.
      (void)set_once(*store, "refused", to_message(exit_status(failure)));
      throw;
    }
    if (assignment()) watch(stop, *store);
  } catch (const Failure& failure) {
    publish(status_, exit_status(failure));
  } catch (const Error& error) {
    publish(status_, {static_cast<int>(Exit::unavailable),
                      fmt::format("node {} and the store at {}: {}", options_.node, address_,
                                  error.message())});
  }
}

std::shared_ptr<Store> Rendezvous::open(const std::stop_token& stop) {
  // Opens the store as a group with one rank per node would: node 0 hosts it and leaves last.
  const ClusterInfo info{.rank = options_.node,
                         .size = options_.nodes,
                         .store = address_,
                         .token_file = token_.file(),
                         .job = job(),
                         .open_store = variable("TUTTI_STORE_OPEN") == "1",
                         .of_ranks = false};
  if (options_.node == 0) return open_cluster_store(info, lost_after);
  Deadline warn = first_warning;
  while (!stop.stop_requested()) {
    try {
      (void)open_cluster_store(info, connect_slice);
      // Opens it again with a longer timeout, which limits the calls.
      return open_cluster_store(info, lost_after);
    } catch (const Error& error) {
      // Node 0 may not have started yet. Retrying does not help against other errors.
      if (error.code() != Errc::timeout) throw;
      const auto text = fmt::format("node {} has not reached node 0", options_.node);
      if (join_deadline_.expired())
        throw Failure(Exit::unavailable,
                      fmt::format("{} within {}: {}", text, format_duration(options_.join_timeout),
                                  error.message()));
      if (!warn.expired()) continue;
      warn = next_warning;
      default_logger()(LogLevel::warning,
                       fmt::format("{}, and tries again: {}", text, error.message()));
    }
  }
  return nullptr;
}

void Rendezvous::assign(const std::stop_token& stop, Store& store) {
  const auto self = this_host();
  const auto mine = to_message(Node{options_.nodes, options_.ranks, free_port(),
                                    fmt::format("{} pid {}", self.name, self.pid)});
  const auto held = set_once(store, key_of_node(options_.node), mine);
  if (held != mine)
    throw Failure(
        Exit::usage,
        fmt::format("two nodes have --node-rank {}: {} and {}; each node needs its own",
                    options_.node, from_message<Node>(held).where, from_message<Node>(mine).where));
  RankAssignment assignment{0, 0, address_, token_.file(), host_, 0};
  for (int number = 0; number < options_.nodes; ++number) {
    std::optional<std::string> text;
    while (!(text = await(store, key_of_node(number)))) {
      if (stop.stop_requested()) return;
      if (const auto refusal = await(store, "refused")) {
        const auto status = from_message<ExitStatus>(*refusal);
        throw Failure(static_cast<Exit>(status.code), status.text);
      }
      if (join_deadline_.expired())
        throw Failure(
            Exit::unavailable,
            fmt::format("node {} of {} did not connect to {} within {}; start it, or let "
                        "TCP connections to this port pass (firewall)",
                        number, options_.nodes, address_, format_duration(options_.join_timeout)));
    }
    const auto node = from_message<Node>(*text);
    if (node.nodes != options_.nodes)
      throw Failure(Exit::usage,
                    fmt::format("node {} ({}) was started with --nnodes {}, and node "
                                "{} with --nnodes {}",
                                number, node.where, node.nodes, options_.node, options_.nodes));
    if (number == 0) assignment.master_port = node.free_port;
    if (number < options_.node) assignment.first_rank += node.ranks;
    assignment.size += node.ranks;
  }
  publish(assignment_, assignment);
}

void Rendezvous::watch(const std::stop_token& stop, Store& store) {
  const auto beats = [&](int node, int more) {
    return store.add(fmt::format("alive/{}", node), more);
  };
  const auto decide = [&](const ExitStatus& status) {
    (void)set_once(store, "status", to_message(status));
  };
  struct Other {
    std::int64_t beats = 0;
    Deadline lost = lost_after;
  };
  std::map<int, Other> others;  // Node 0 watches them.
  if (options_.node == 0)
    for (int node = 1; node < options_.nodes; ++node) others[node] = {};
  Deadline next_beat = 0s;
  bool reported = false;
  while (!stop.stop_requested()) {
    std::optional<ExitStatus> mine;
    {
      const std::lock_guard lock(mutex_);
      mine = mine_;
    }
    if (mine && !reported) {
      reported = true;
      if (mine->code != 0 || store.add("ended", 1) == options_.nodes) decide(*mine);
    }
    if (next_beat.expired()) {
      next_beat = heartbeat;
      (void)beats(options_.node, 1);
      for (auto& [node, other] : others) {
        const auto now = beats(node, 0);
        if (now != other.beats)
          other = {now, lost_after};
        else if (other.lost.expired())
          decide({static_cast<int>(Exit::unavailable),
                  fmt::format("node {} has not been heard of for {} s", node, lost_after.count())});
      }
    }
    if (const auto text = await(store, "status"))
      return publish(status_, from_message<ExitStatus>(*text));
  }
}

}  // namespace tutti::tool
