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
  StoreTable::Value value{};  ///< Of Outcome::value.
  Errc code{};                ///< Of Outcome::error, with its text.
  std::string text{};
};

Reply error_reply(std::uint64_t id, const Error& error);

/// What a store server does with a request, without sockets: the table, and the gets that wait for
/// a key. Their number needs no limit of its own, since they are counted in the table's bytes.
class StoreRequests {
 public:
  using Clock = Deadline::Clock;
  using Client = std::uint64_t;
  /// Must not call back.
  using Send = std::function<void(Client client, const Reply& reply)>;

  StoreRequests(StoreTable::Limits limits, Send send) : table_(limits), send_(std::move(send)) {}

  /// Replies now; to a get at the latest when its time is up.
  void handle(Client client, const Request& request, Clock::time_point now);
  /// Its waiting gets will not be answered any more.
  void forget(Client client);
  /// Answers the gets whose time is up.
  void expire(Clock::time_point now);
  /// time_point::max() when nothing waits.
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
