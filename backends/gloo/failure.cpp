#include "failure.hpp"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

#include <fmt/format.h>

#include "group/record.hpp"
#include "store/checks.hpp"
#include "values/error_record.hpp"

namespace tutti::backend::gloo {
namespace {

using namespace std::chrono_literals;

/// How long the first rank waits for the others to say where they are.
constexpr auto roll_call = 60ms;
/// The same, when it took the first rank that long to reach the store.
constexpr auto shortest_roll_call = 10ms;
/// How long the others wait for its verdict.
constexpr auto patience = 1s;
/// What the first rank says beside its number when the roll is called.
constexpr std::string_view late = "late";

Error with_message(const Error& error, int rank, const std::string& message) {
  auto where = error.where();
  where.rank = rank;
  return {error.code(), message, where};
}

}  // namespace

Agreement::Agreement(std::shared_ptr<Store> store, int rank)
    : store_(std::move(store)), rank_(rank) {}

bool Agreement::announce(const Report& report) const noexcept {
  try {
    const auto mine = fmt::format("{}\n{}", rank_, report.ranks.empty() ? "" : late);
    const auto first = store_->compare_set("failing", {}, internal::to_bytes(mine));
    if (internal::to_text(first) == mine) return true;
  } catch (...) {
    return true;  // Without the store every rank speaks for itself.
  }
  if (!report.call.empty()) tell(report.call);
  return false;
}

Error Agreement::settle(const Report& report, bool first) const noexcept {
  try {
    if (!first) return internal::decode_error(store_->get_text("cause", Deadline::after(patience)));
    const Error cause = find_cause(report);
    store_->set("cause", internal::encode_error(cause));
    return cause;
  } catch (...) {  // The store has gone too, or the first rank died before it spoke.
    return report.cause;
  }
}

void Agreement::tell(const std::string& where) const noexcept {
  try {
    store_->set(fmt::format("in/{}", rank_), where);
  } catch (...) {  // It is only for error texts.
  }
}

void Agreement::leave() const noexcept {
  try {
    store_->set(fmt::format("left/{}", rank_), "");
  } catch (...) {  // Then peers say that the connection ended.
  }
}

Ending Agreement::why_ended(int rank) const noexcept {
  try {
    if (store_->try_get(fmt::format("left/{}", rank))) return Ending::left;
    const auto failing = store_->try_get("failing");
    return failing && internal::to_text(*failing).ends_with(late) ? Ending::late : Ending::failed;
  } catch (...) {
    return Ending::left;
  }
}

Error Agreement::find_cause(const Report& report) const {
  if (report.lost >= 0) {
    const bool left = store_->try_get(fmt::format("left/{}", report.lost)).has_value();
    const int rank = report.cause.where().rank;
    return with_message(
        report.cause, rank,
        left ? fmt::format("rank {} has left the group", rank)
             : fmt::format("the connection to rank {} ended: its process has died, or its host "
                           "cannot be reached",
                           rank));
  }
  return report.ranks.empty() ? report.cause : call_the_roll(report);
}

Error Agreement::call_the_roll(const Report& report) const {
  const auto end = Deadline::at(
      std::max(report.since + roll_call, std::chrono::steady_clock::now() + shortest_roll_call));
  // Each question takes a round trip, on what may be a link that is full.
  std::vector<std::optional<std::string>> calls(report.ranks.size());
  std::vector<int> missing;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (report.ranks[i] == rank_)
      calls[i] = report.call;
    else
      missing.push_back(static_cast<int>(i));
  }
  while (true) {
    std::erase_if(missing, [&](int rank) {
      const auto i = static_cast<std::size_t>(rank);
      if (const auto call = store_->try_get(fmt::format("in/{}", report.ranks[i])))
        calls[i] = internal::to_text(*call);
      return calls[i] == report.call;
    });
    if (missing.empty() || end.expired()) break;
    std::this_thread::sleep_for(2ms);
  }
  if (missing.empty())
    return with_message(report.cause, report.cause.where().rank,
                        fmt::format("{}; all ranks have entered, so the data is slower than the "
                                    "deadline allows, or a rank has stopped",
                                    report.cause.message()));
  std::vector<int> entered;
  for (std::size_t i = 0; i < calls.size(); ++i)
    if (calls[i] == report.call) entered.push_back(static_cast<int>(i));
  std::string absent;
  for (const int rank : missing) {
    const auto& call = calls[static_cast<std::size_t>(rank)];
    const int mesh_rank = report.ranks[static_cast<std::size_t>(rank)];
    absent +=
        fmt::format("{}{}{}", absent.empty() ? "" : ", ", rank,
                    call ? fmt::format(" ({})", *call)
                    : store_->try_get(fmt::format("left/{}", mesh_rank)) ? " (has left the group)"
                                                                         : "");
  }
  return with_message(report.cause, missing.front(),
                      fmt::format("{}; entered: {}; missing: {}", report.cause.message(),
                                  internal::list_ranks(entered), absent));
}

}  // namespace tutti::backend::gloo
