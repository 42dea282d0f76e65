#include "run/ending.hpp"

#include <charconv>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tutti/deadline.hpp>

#include "run/hang_report.hpp"

namespace tutti::tool {
namespace {

using Json = nlohmann::json;
using Steady = std::chrono::steady_clock;
using Wall = std::chrono::system_clock;

constexpr const char* verdict_key = "end/verdict";

std::string key_of(int rank) {
  return fmt::format("end/{}", rank);
}

/// A moment as hosts share it. Processes of one host agree exactly, others as well as their clocks.
std::int64_t to_wall(Steady::time_point moment) {
  const auto then =
      Wall::now() + std::chrono::duration_cast<Wall::duration>(moment - Steady::now());
  return std::chrono::nanoseconds(then.time_since_epoch()).count();
}
Steady::time_point from_wall(std::int64_t ns) {
  const auto then =
      Wall::time_point(std::chrono::duration_cast<Wall::duration>(std::chrono::nanoseconds(ns)));
  return Steady::now() + std::chrono::duration_cast<Steady::duration>(then - Wall::now());
}

Json json_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    const Error::Where& where = error.where();
    return {
        {"errc", static_cast<int>(error.code())}, {"text", error.message()}, {"group", where.group},
        {"operation", where.operation},           {"seq", where.seq},        {"rank", where.rank}};
  } catch (const Failure& failure) {
    return {{"exit", static_cast<int>(failure.code())}, {"text", failure.what()}};
  } catch (const std::exception& error) {
    return {{"exit", static_cast<int>(Exit::internal)}, {"text", error.what()}};
  } catch (...) {
    return {{"exit", static_cast<int>(Exit::internal)}, {"text", "unknown exception"}};
  }
}

std::exception_ptr thrown_from(const Json& json) {
  const std::string text = json.at("text");
  if (json.contains("exit"))
    return std::make_exception_ptr(Failure(static_cast<Exit>(json.at("exit").get<int>()), text));
  const Error::Where where{json.at("group"), json.at("operation"), json.at("seq"), json.at("rank")};
  return std::make_exception_ptr(Error(static_cast<Errc>(json.at("errc").get<int>()), text, where));
}

std::string to_text(const Outcome& outcome) {
  Json json{{"ended", to_wall(outcome.ended)}};
  if (outcome.error) {
    json["error"] = json_of(outcome.error);
    json["what"] = outcome.position.what;
    json["bytes"] = outcome.position.bytes;
    json["iteration"] = outcome.position.iteration;
    Json trace = Json::array();
    for (const TraceEntry& entry : outcome.trace)
      trace.push_back({entry.seq, static_cast<int>(entry.operation), to_wall(entry.started)});
    json["trace"] = std::move(trace);
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Outcome outcome_from(int rank, const std::string& text) {
  const Json json = Json::parse(text);
  Outcome outcome;
  outcome.rank = rank;
  outcome.ended = from_wall(json.at("ended"));
  if (!json.contains("error")) return outcome;
  outcome.error = thrown_from(json.at("error"));
  outcome.position.what = json.at("what");
  outcome.position.bytes = json.at("bytes");
  outcome.position.iteration = json.at("iteration");
  for (const Json& item : json.at("trace")) {
    TraceEntry entry;
    entry.seq = item.at(0);
    entry.operation = static_cast<Operation>(item.at(1).get<int>());
    entry.started = from_wall(item.at(2));
    outcome.trace.push_back(entry);
  }
  return outcome;
}

}  // namespace

Exit report_ending(Store& store, const Outcome& own, std::chrono::nanoseconds patience) {
  store.set(key_of(own.rank), to_text(own));
  const std::string text = store.get_text(verdict_key, Deadline::after(patience));
  int code = static_cast<int>(Exit::internal);
  std::from_chars(text.data(), text.data() + text.size(), code);
  return static_cast<Exit>(code);
}

std::vector<Outcome> collect_endings(Store& store, const Outcome& own, int size,
                                     std::chrono::nanoseconds patience) {
  std::vector<Outcome> outcomes{own};
  const auto deadline = Deadline::after(patience);
  for (int rank = 1; rank < size; ++rank) {
    try {
      outcomes.push_back(outcome_from(rank, store.get_text(key_of(rank), deadline)));
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
      Outcome silent;
      silent.rank = rank;
      silent.silent = true;
      silent.error = std::make_exception_ptr(
          Error(Errc::peer_lost, fmt::format("rank {} sent no word of how it ended", rank)));
      silent.ended = Steady::now();
      outcomes.push_back(silent);
    }
  }
  return outcomes;
}

void announce(Store& store, Exit verdict) {
  store.set(verdict_key, fmt::format("{}", static_cast<int>(verdict)));
}

Exit exit_code_of(const Outcome& outcome) {
  if (!outcome.error) return Exit::ok;
  try {
    std::rethrow_exception(outcome.error);
  } catch (const Failure& failure) {
    return failure.code();
  } catch (const Error& error) {
    switch (error.code()) {
      case Errc::timeout:
      case Errc::mismatch:
        return Exit::timeout;
      case Errc::unsupported:
      case Errc::resource_exhausted:
        return Exit::unavailable;
      case Errc::invalid_argument:
      case Errc::count_overflow:
      case Errc::not_initialized:
      case Errc::peer_lost:
      case Errc::aborted:
      case Errc::forked:
      case Errc::backend:
        return Exit::internal;
    }
  } catch (...) {
  }
  return Exit::internal;
}

Exit end_together(const RankSource& source, const Outcome& own, std::chrono::nanoseconds patience,
                  std::chrono::nanoseconds longest,
                  const std::function<Exit(const std::vector<Outcome>&)>& conclude) {
  if (source.group.size == 1) return conclude({own});
  const auto store = make_prefix_store(source.group.store, "tool/");
  if (source.group.rank != 0) {
    try {
      return report_ending(*store, own, longest);
    } catch (const Error& error) {
      if (!own.error) throw;
      throw Failure(exit_code_of(own), fmt::format("rank {}: {} (and from rank 0: {})", own.rank,
                                                   error_text(own), error.what()));
    }
  }
  const std::vector<Outcome> outcomes = collect_endings(*store, own, source.group.size, patience);
  try {
    const Exit code = conclude(outcomes);
    announce(*store, code);
    return code;
  } catch (const Failure& failure) {
    announce(*store, failure.code());
    throw;
  }
}

}  // namespace tutti::tool
