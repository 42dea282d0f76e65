#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/deadline.hpp>

#include "store/protocol.hpp"
#include "store/table.hpp"

namespace tutti::internal {

struct Reply {
  std::uint64_t id = 0;
  Outcome outcome = Outcome::nothing;
  StoreTable::Value value{};  ///< For Outcome::value.
  Errc code{};                ///< For Outcome::error, with its text.
  std::string text{};
};

Reply error_reply(std::uint64_t id, const Error& error);

/// The logic of a store server, without sockets: the table, and the gets that wait for a key. The
/// table's byte limit covers waiting gets.
class StoreRequests {
 public:
  using Clock = Deadline::Clock;
  using Client = std::uint64_t;
  /// Sends a reply to a client. Must not call the StoreRequests.
  using Send = std::function<void(Client client, const Reply& reply)>;

  StoreRequests(StoreTable::Limits limits, Send send) : table_(limits), send_(std::move(send)) {}

  /// Handles a request. Replies at once; a get may wait for its key, at most until its deadline.
  void handle(Client client, const Request& request, Clock::time_point now);
  /// Drops the client's waiting gets.
  void forget(Client client);
  /// Answers the gets whose deadline has passed.
  void expire(Clock::time_point now);
  /// The earliest deadline of a waiting get; time_point::max() when none waits.
  Clock::time_point next_expiry() const;

 private:
  using Waiter = std::pair<Client, std::uint64_t>;  // Client and request.
  struct Wait {
    std::string key;
    Clock::time_point until;
  };
  using Waits = std::map<Waiter, Wait>;

  Reply answer(Client client, const Request& request, Clock::time_point now, bool& waits);
  void wait(Client client, const Request& request, Clock::time_point now);
  void wake(std::string_view key);
  Waits::iterator end_wait(Waits::iterator wait);

  StoreTable table_;
  Send send_;
  Waits waits_;
  std::map<std::string, std::set<Waiter>, std::less<>> by_key_;
  std::set<std::pair<Clock::time_point, Waiter>> by_time_;
};

}  // namespace tutti::internal
