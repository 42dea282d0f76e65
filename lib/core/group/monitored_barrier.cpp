#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "backend/agreement.hpp"
#include "backend/rendezvous.hpp"
#include "group/core.hpp"
#include "store/checks.hpp"
#include "values/bytes.hpp"
#include "values/fail.hpp"

// Keys of a barrier, behind a prefix:
//   count     the ranks that have entered. The first rank whose deadline passes closes the barrier:
//             it adds W, so a rank that gets a number beyond W is late, and knows it.
//   result    `passed` or `closing`; all ranks that have entered wait for it
//   in/<r>    rank r had entered; written only while the barrier is closing
//   error     code and text of the error of all ranks, written by the rank that has closed it
// One atomic number decides for all ranks: they pass if W of them have added before
// the closing rank has.

namespace tutti::internal {
namespace {

class MonitoredBarrier {
 public:
  static constexpr std::string_view verb = "monitored_barrier";

  MonitoredBarrier(const std::shared_ptr<Store>& store, std::string prefix, const Backend& backend,
                   const std::string& group, const Bounds& bounds)
      : store_(*store),
        agreement_(store, bounds.rank, bounds.size),
        prefix_(std::move(prefix)),
        backend_(backend),
        group_(group),
        bounds_(bounds) {}

  /// Returns the error of all ranks; empty: all have entered.
  std::optional<Error> wait(Deadline limit) {
    const auto number = store_.add(key("count"), 1);
    if (number > bounds_.size) return await_error();
    if (number == bounds_.size) {
      store_.set(key("result"), passed);
      return std::nullopt;
    }
    if (const auto result = await_result(limit)) return ended(*result);
    const auto at_closing = store_.add(key("count"), bounds_.size);
    const auto entered = at_closing - bounds_.size;
    if (entered > bounds_.size) {  // Another rank has closed it.
      const auto result = await_result(Deadline::after(longer_patience));
      return result ? ended(*result) : std::optional(no_answer());
    }
    if (entered == bounds_.size) {  // The last rank is about to set it.
      store_.set(key("result"), passed);
      return std::nullopt;
    }
    return close(entered);
  }

  /// Erases the keys of a barrier that all ranks have passed, and left.
  static void forget(Store& store, const std::string& prefix) {
    for (const auto* name : {"count", "result"}) store.erase(prefix + name);
  }

 private:
  static constexpr std::string_view passed = "passed";
  static constexpr std::string_view closing = "closing";
  /// The longest time until a waiting rank notices that its group has failed.
  static constexpr std::chrono::milliseconds look_interval{100};
  /// The time in which ranks that have entered say so to the rank that closes the barrier.
  static constexpr std::chrono::seconds patience{2};
  /// A rank that waits longer for the error counts the closing rank as dead.
  static constexpr std::chrono::seconds longer_patience{5};
  static constexpr std::chrono::milliseconds pause_of_closing{5};

  Error late(Errc code, const std::string& message, int rank, std::vector<int> missing) const {
    return {code,
            message,
            {.group = group_,
             .operation = std::string(verb),
             .rank = rank,
             .missing = std::move(missing)}};
  }
  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  std::string key_in(int rank) const { return fmt::format("{}in/{}", prefix_, rank); }

  /// Empty at the deadline, or once the group has failed.
  std::optional<std::string> await_result(Deadline limit) {
    struct GroupFailed {};
    try {
      const auto look = [&] {
        if (cause_of_group()) throw GroupFailed();
      };
      return to_text(await_key(store_, key("result"), limit, look_interval, look));
    } catch (const GroupFailed&) {
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
    }
    return std::nullopt;
  }

  std::optional<Error> ended(std::string_view result) {
    if (result == passed) return std::nullopt;
    store_.set(key_in(bounds_.rank), std::string_view("1"));
    return await_error();
  }

  Error await_error() {
    try {
      const auto bytes = store_.get(key("error"), Deadline::after(longer_patience));
      Reader in(bytes, Errc::backend, "the error of a monitored barrier");
      const auto code = static_cast<Errc>(in.u8());
      const auto rank = static_cast<int>(in.i64());
      std::vector<int> missing;
      for (const auto r : in.list()) missing.push_back(static_cast<int>(r));
      return late(code, std::string(in.text()), rank, missing);
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
      return no_answer();
    }
  }

  Error no_answer() const {
    return late(Errc::timeout,
                "the deadline of a rank passed, which has not said who was late; it may have died",
                -1, {});
  }

  /// Ends the barrier for all ranks. `count`: the ranks that have entered.
  Error close(std::int64_t count) {
    store_.set(key("result"), closing);
    std::vector<Presence> ranks(static_cast<std::size_t>(bounds_.size));
    ranks[static_cast<std::size_t>(bounds_.rank)].entered = true;
    const auto limit = Deadline::after(patience);
    for (std::int64_t found = 1;;) {
      for (int r = 0; r < bounds_.size && found < count; ++r) {
        auto& entered = ranks[static_cast<std::size_t>(r)].entered;
        if (entered || !store_.try_get(key_in(r))) continue;
        entered = true;
        ++found;
      }
      if (found == count || limit.expired()) break;
      std::this_thread::sleep_for(pause_of_closing);
    }
    for (int r = 0; r < bounds_.size; ++r) {
      auto& rank = ranks[static_cast<std::size_t>(r)];
      rank.left = !rank.entered && agreement_.left(r);
    }
    const auto failure = cause_of_group();
    const Error named =
        name_missing(late(failure ? failure->code() : Errc::timeout,
                          failure ? failure->message() : "the deadline passed", -1, {}),
                     ranks, {}, GroupNames(group_));
    const auto& where = named.where();
    const int rank = failure ? failure->where().rank : where.rank;
    Writer out;
    out.u8(static_cast<std::uint8_t>(named.code())).i64(rank);
    out.list(std::vector<std::int64_t>(where.missing.begin(), where.missing.end()));
    out.text(named.message());
    store_.set(key("error"), out.bytes());
    return late(named.code(), named.message(), rank, where.missing);
  }

  /// The error of the group if it has failed, even if this rank's transport has not noticed.
  std::optional<Error> cause_of_group() {
    auto cause = backend_.failure();
    return cause ? cause : agreement_.cause({});
  }

  Store& store_;
  Agreement agreement_;
  std::string prefix_;
  const Backend& backend_;
  const std::string& group_;
  Bounds bounds_;
};

}  // namespace

void Core::monitored_barrier(const CallOptions& options) try {
  constexpr auto verb = MonitoredBarrier::verb;
  check_usable(verb);
  check_timeout(options);
  if (collects_here())
    failf(Errc::invalid_argument,
          "{}: group '{}' is collecting calls for a Coalesce, and this call waits for its peers; "
          "call launch() first",
          verb, options_.name);
  if (bounds_.size == 1) return;
  const auto prefix_of = [&](std::uint64_t barrier) {
    return fmt::format("monitored/{}/{}/", late_barriers_, barrier % 3);
  };
  MonitoredBarrier barrier(options_.store, prefix_of(barriers_since_), *backend_, options_.name,
                           bounds_);
  const auto error = barrier.wait(make_call(options, true).limit());
  if (error) {
    // Its keys stay, because ranks may come later.
    ++late_barriers_;
    barriers_since_ = 0;
    throw Error(*error);
  }
  // All ranks have passed this one, so they have left the one before. None enters the one after
  // the next until this rank has entered the next one: three prefixes are enough.
  if (bounds_.rank == 0 && barriers_since_ > 0)
    MonitoredBarrier::forget(*options_.store, prefix_of(barriers_since_ + 2));
  ++barriers_since_;
} catch (const std::bad_alloc&) {
  end_for_lack_of_memory(MonitoredBarrier::verb);
}

}  // namespace tutti::internal
