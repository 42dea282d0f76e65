#include "launch/published_store.hpp"

#include <algorithm>
#include <charconv>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/log.hpp>
#include <tutti/store/token.hpp>

#include "launch/cluster.hpp"
#include "launch/hosted_store.hpp"
#include "launch/pmi.hpp"
#include "launch/pmix.hpp"
#include "store/log_limit.hpp"
#include "store/network_interface.hpp"
#include "values/fail.hpp"

namespace tutti::internal {
namespace {

constexpr const char* published_key = "tutti-store";
/// The first word of the published text; another one is of another version.
constexpr std::string_view published_form = "tutti1";
/// The time for which a rank tries one address before it tries the next.
constexpr auto address_timeout = std::chrono::seconds(2);

/// The place of rank 0's store.
struct PublishedStore {
  int port = 0;  ///< 0: rank 0 cannot host it.
  StoreToken token{};
  std::vector<std::string> addresses{};
};

/// The addresses of this host that other hosts may reach, the likeliest first; loopback alone if
/// there is no other.
std::vector<std::string> addresses_for_others() {
  std::vector<std::string> found;
  const auto add = [&found](std::string address) {
    if (std::ranges::find(found, address) == found.end()) found.push_back(std::move(address));
  };
  if (auto address = address_of_default_route(); !address.empty()) add(std::move(address));
  try {
    for (auto& i : network_interfaces())
      if (!i.loopback && i.address.find('%') == std::string::npos) add(std::move(i.address));
  } catch (const Error&) {  // The system does not list them.
  }
  if (found.empty()) found.emplace_back("127.0.0.1");
  return found;
}

/// "tutti1,PORT,TOKEN,ADDRESS,..." with as many addresses as fit.
std::string to_text(const PublishedStore& store, std::size_t most_letters) {
  std::string text = fmt::format("{},{},{}", published_form, store.port, store.token.text());
  const auto bare = text.size();
  for (const auto& address : store.addresses)
    if (text.size() + 1 + address.size() <= most_letters) text += "," + address;
  if (text.size() == bare && !store.addresses.empty())
    failf(Errc::unsupported,
          "the launcher's key-value space takes values of {} letters, but the place of the store "
          "has {} without an address; set TUTTI_STORE, or MASTER_ADDR and MASTER_PORT",
          most_letters, bare);
  return text;
}

PublishedStore from_text(std::string_view text) {
  std::vector<std::string> fields(1);
  for (const char letter : text)
    if (letter == ',')
      fields.emplace_back();
    else
      fields.back() += letter;
  if (fields.front() != published_form || fields.size() < 3)
    failf(Errc::mismatch,
          "the launcher's key-value space has no '{}' of this version of tutti; expected a text "
          "that begins with '{}': every rank needs the same version",
          published_key, published_form);
  PublishedStore store;
  std::from_chars(fields[1].data(), fields[1].data() + fields[1].size(), store.port);
  if (store.port == 0) fail(Errc::backend, "rank 0 cannot host the store; its own error says why");
  if (!fields[2].empty()) store.token = StoreToken::from_text(fields[2]);
  store.addresses.assign(fields.begin() + 3, fields.end());
  return store;
}

/// Connects to the first address that answers.
std::shared_ptr<Store> connect_to_any(const PublishedStore& place, const StoreIdentity& identity,
                                      std::chrono::nanoseconds timeout, const Deadline& deadline) {
  std::string failures;
  WaitWarnings warnings;
  auto last = Errc::timeout;
  bool may_answer_later = true;
  do {
    failures.clear();
    may_answer_later = false;
    for (const auto& address : place.addresses) {
      try {
        const auto slice = std::clamp<std::chrono::nanoseconds>(
            deadline.remaining(), std::chrono::milliseconds(100), address_timeout);
        (void)make_tcp_store(address, place.port, slice, identity);
        // Again with a longer timeout, which limits the calls.
        return make_tcp_store(address, place.port, timeout, identity);
      } catch (const Error& error) {
        last = error.code();
        may_answer_later = may_answer_later || last == Errc::timeout;
        failures += fmt::format("; {}: {}", address, error.message());
      }
    }
    if (const auto time = warnings.due(Deadline::Clock::now()); time && may_answer_later)
      default_logger()(LogLevel::warning,
                       fmt::format("rank {} has not reached the store of rank 0, port {}, after {} "
                                   "s, and tries again{}",
                                   identity.rank, place.port, time->count(), failures));
  } while (may_answer_later && !deadline.expired());
  failf(may_answer_later ? Errc::timeout : last,
        "rank {} of {} cannot reach the store of rank 0, port {}{}; let TCP connections to rank "
        "0's host pass, or set TUTTI_STORE to an address that every rank reaches",
        identity.rank, identity.size, place.port, failures);
}

/// The result of the exchange in this process.
struct Exchange {
  std::mutex mutex{};
  std::optional<PublishedStore> place{};
  std::weak_ptr<HostedStore> hosted{};  // On rank 0.
};

Exchange& exchange_of_this_process() {
  static Exchange exchange;
  return exchange;
}

void host(HostedStore& hosted, const ClusterInfo& info, PublishedStore& place) {
  hosted.server = std::make_unique<StoreServer>(StoreServerOptions{.host = "*",
                                                                   .port = place.port,
                                                                   .token = place.token,
                                                                   .job = info.job,
                                                                   .generation = info.generation,
                                                                   .size = info.size});
  place.port = hosted.server->port();
}

std::unique_ptr<KeyValueSpace> open_space(const ClusterInfo& info, Deadline deadline) {
  if (info.launcher == "PMI") return std::make_unique<PmiConnection>(deadline);
  return std::make_unique<PmixConnection>(info.rank, deadline);
}

/// The exchange itself. On rank 0 it makes the server.
PublishedStore exchange_place(const ClusterInfo& info, const StoreToken& token, HostedStore* hosted,
                              Deadline deadline) {
  const auto launcher = open_space(info, deadline);
  PublishedStore place;
  std::exception_ptr failure;
  if (hosted != nullptr) {
    const auto publish = [&launcher](const PublishedStore& published) {
      launcher->put(published_key, to_text(published, launcher->most_letters()));
    };
    try {
      place.token = token || !StoreToken::available() ? token : StoreToken::random();
      place.port = named_store_port();
      place.addresses = addresses_for_others();
      host(*hosted, info, place);
      // The token of a file stays in the file.
      publish({place.port, token ? StoreToken() : place.token, place.addresses});
    } catch (...) {
      failure = std::current_exception();
      try {
        publish({});
      } catch (...) {  // The others find no text.
      }
    }
  }
  try {
    launcher->wait_for_all();  // Even after a failure: the others wait there.
  } catch (...) {
    if (!failure) throw;
  }
  if (failure) std::rethrow_exception(failure);
  if (hosted == nullptr) {
    place = from_text(launcher->get(published_key));
    if (token) place.token = token;
  }
  return place;
}

}  // namespace

bool can_publish_store(const ClusterInfo& info) {
  // Ranks of one host find each other by the launcher's process. A rank that does not see it, as
  // under sudo, must not wait in the exchange for the others.
  return info.store.empty() && info.size > 1 && info.local_size != info.size && info.of_ranks &&
         has_key_value_space(info);
}

std::shared_ptr<Store> open_published_store(const ClusterInfo& info,
                                            std::chrono::nanoseconds timeout) {
  if (info.token_file.empty() && !StoreToken::available() && !info.open_store)
    failf(Errc::invalid_argument,
          "the store of {} ranks would listen for other hosts without authentication, because this "
          "tutti was built without OpenSSL; set TUTTI_STORE_OPEN=1 if only trusted programs reach "
          "this network",
          info.size);
  const auto deadline = Deadline::after(timeout);
  const auto token = info.token_file.empty() ? StoreToken() : StoreToken::read(info.token_file);
  auto& exchange = exchange_of_this_process();
  const std::lock_guard lock(exchange.mutex);
  auto hosted = info.rank == 0 ? exchange.hosted.lock() : nullptr;
  const bool hosts = info.rank == 0 && hosted == nullptr;
  if (hosts) hosted = std::make_shared<HostedStore>();
  if (!exchange.place)
    exchange.place = exchange_place(info, token, hosted.get(), deadline);
  else if (hosts)
    host(*hosted, info, *exchange.place);
  const auto& place = *exchange.place;
  auto client = connect_to_any(place,
                               {.token = place.token,
                                .job = place.token ? info.job : std::string(),
                                .generation = info.generation,
                                .rank = info.rank,
                                .size = info.size},
                               timeout, deadline);
  if (hosted == nullptr) return client;
  exchange.hosted = hosted;
  using Both = std::pair<std::shared_ptr<HostedStore>, std::shared_ptr<Store>>;
  return {std::make_shared<Both>(hosted, client), client.get()};
}

}  // namespace tutti::internal
