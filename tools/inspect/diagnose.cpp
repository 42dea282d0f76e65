#include "inspect/inspect.hpp"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <tutti/error.hpp>

#include "common/host.hpp"
#include "common/text.hpp"
#include "inspect/diagnosis.hpp"
#include "report/json.hpp"
#include "report/output.hpp"

namespace tutti::tool {

namespace {

std::string utc(std::chrono::system_clock::time_point time) {
  const auto seconds = std::chrono::system_clock::to_time_t(time);
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(seconds));
}

}  // namespace

void describe(Fields& fields, const Finding& finding) {
  fields("kind", finding.kind);
  fields("text", finding.text);
}

void describe(Fields& fields, const RankReport& rank) {
  fields("rank", rank.rank);
  fields("pid", rank.pid);
  fields("host", rank.host);
  fields("state", rank.state);
  fields("finished", unless_empty(rank.finished));
  fields("current", unless_empty(rank.current));
  fields("age_s", rank.age_s);
}

void describe(Fields& fields, const GroupReport& group) {
  fields("name", group.name);
  fields("made", utc(group.made));
  fields("size", group.size);
  fields("missing", unless_empty(group.missing));
  fields("ranks", group.ranks);
  fields("findings", group.findings);
}

namespace {

/// A reader stops after so many bytes: a trace file has fewer.
constexpr std::size_t most_file_bytes = 64 * 1024;
/// A process may write its trace meanwhile.
constexpr int most_reads = 20;

struct Unreadable {
  std::string file{};
  std::string why{};
};

void describe(Fields& fields, const Unreadable& unreadable) {
  fields("file", unreadable.file);
  fields("why", unreadable.why);
}

/// The output.
struct Diagnosis {
  std::vector<GroupReport> groups{};
  std::vector<Unreadable> unreadable{};

  std::size_t findings() const {
    std::size_t count = unreadable.size();
    for (const auto& group : groups) count += group.findings.size();
    return count;
  }
};

std::string read_once(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes(most_file_bytes, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (file.bad() || !file.eof())
    throw Error(Errc::invalid_argument, "it cannot be read, or is larger than a trace file");
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return bytes;
}

/// A copy that did not change between two reads, if the process pauses long enough.
TraceFile read_file(const std::filesystem::path& path) {
  std::string bytes = read_once(path);
  for (int i = 0; i < most_reads; ++i)
    if (bytes == std::exchange(bytes, read_once(path))) break;
  return read_trace(std::as_bytes(std::span(bytes)));
}

Diagnosis diagnose_directory(const std::string& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> paths;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error))
    if (at->path().extension() == ".trace") paths.push_back(at->path());
  if (error)
    refuse("diagnose: '{}' cannot be read: {}; name the directory of TUTTI_TRACE_DIR", directory,
           error.message());
  if (paths.empty())
    throw Failure(Exit::unavailable,
                  fmt::format("diagnose: '{}' has no trace files (*.trace); set TUTTI_TRACE_DIR to "
                              "it when the ranks start",
                              directory));
  std::ranges::sort(paths);
  const auto host = this_host().name;
  Diagnosis diagnosis;
  std::vector<RankTrace> traces;
  for (const auto& path : paths) try {
      TraceFile file = read_file(path);
      const bool gone =
          file.host == host && ::kill(static_cast<pid_t>(file.pid), 0) != 0 && errno == ESRCH;
      traces.push_back({std::move(file), gone});
    } catch (const Error& why) {
      diagnosis.unreadable.push_back({path.filename().string(), why.message()});
    }
  diagnosis.groups = diagnose(std::move(traces), std::chrono::system_clock::now());
  return diagnosis;
}

std::string text_of(const RankReport& rank) {
  std::string text = fmt::format("  rank {:<4} process {} on {}, {}: ", rank.rank, rank.pid,
                                 rank.host, rank.state);
  text += rank.finished.empty() ? "finished no call" : "finished " + rank.finished;
  if (!rank.current.empty())
    text += fmt::format("; in {}, entered {:.1f} s ago", rank.current, rank.age_s.value_or(0));
  return text + "\n";
}

std::string text_of(const Diagnosis& diagnosis) {
  std::string text;
  for (const auto& group : diagnosis.groups) {
    text += fmt::format("group {}  {}, made {}\n", group.name, plural(group.size, "rank"),
                        utc(group.made));
    for (const auto& rank : group.ranks) text += text_of(rank);
    for (const auto& finding : group.findings)
      text += fmt::format("  {:<9} {}\n", finding.kind, finding.text);
  }
  for (const auto& unreadable : diagnosis.unreadable)
    text += fmt::format("unreadable  {}: {}\n", unreadable.file, unreadable.why);
  const auto count = diagnosis.findings();
  return text + (count == 0 ? "nothing is wrong\n"
                            : plural(static_cast<std::int64_t>(count), "finding") + "\n");
}

void describe(Fields& fields, const Diagnosis& diagnosis) {
  fields("findings", diagnosis.findings());
  fields("groups", diagnosis.groups);
  fields("unreadable", diagnosis.unreadable);
}

}  // namespace

Exit run_diagnose(const std::string& directory, bool json) {
  const auto diagnosis = diagnose_directory(directory);
  fmt::print("{}", json ? to_json(Fields::object(diagnosis)) : text_of(diagnosis));
  flush(stdout);
  return diagnosis.findings() == 0 ? Exit::ok : Exit::found;
}

}  // namespace tutti::tool
