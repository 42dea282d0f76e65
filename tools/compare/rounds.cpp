#include "compare/rounds.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <random>
#include <system_error>

#include <fmt/format.h>

#include "common/duration.hpp"
#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t most_rounds = 1000;

/// Many short runs say more than a few long ones.
constexpr std::string_view short_runs = " --min-time 50ms";

/// The command with the options that make it print JSON.
std::string with_options(const std::string& command) {
  const auto has = [&](std::string_view option) {
    return command.find(option) != std::string::npos;
  };
  if (has(" -f ") || has("--format"))
    refuse(
        "--run '{}': -f json is added at its end; leave out -f (nccl-tests' factor is --stepfactor "
        "here, too)",
        command);
  return fmt::format("{} -f json -q{}", command,
                     has("--min-time") || has("--iters") ? "" : short_runs);
}

struct ClosePipe {
  void operator()(std::FILE* pipe) const noexcept { pclose(pipe); }
};

/// Runs `with_json`, the `command` with options of its own. Its errors go to this process's stderr.
SavedRun run_command(const std::string& command, const std::string& with_json) {
  std::unique_ptr<std::FILE, ClosePipe> pipe(popen(with_json.c_str(), "re"));
  if (pipe == nullptr)
    throw Failure(Exit::unavailable, fmt::format("cannot run '{}': {}", command,
                                                 std::generic_category().message(errno)));
  std::string text;
  std::array<char, 65536> part{};
  while (const std::size_t n = std::fread(part.data(), 1, part.size(), pipe.get()))
    text.append(part.data(), n);
  const int status = pclose(pipe.release());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (code != 0)
    // 1 to 3 would be results of the comparison.
    throw Failure(code > 3 ? static_cast<Exit>(code) : Exit::internal,
                  fmt::format("'{}' ended with {}", command, code));
  return parse_saved_run(text, fmt::format("output of '{}'", command));
}

}  // namespace

Rounds run_rounds(const RoundsOptions& options, std::FILE* err) {
  const std::string old_command = with_options(options.old_command);
  const std::string new_command = with_options(options.new_command);
  const bool shows = isatty(fileno(err)) != 0;
  const auto start = Clock::now();
  std::chrono::nanoseconds longest{};
  std::mt19937 random(std::random_device{}());
  bool old_first = false;
  Rounds all;
  for (std::int64_t round = 0; round < options.rounds.value_or(most_rounds); ++round) {
    const auto before = Clock::now();
    if (!options.rounds && round > 0 && before - start + longest > options.max_total) break;
    if (shows)
      fmt::print(err, "\rround {}, {:.0f} s of {} ", round + 1, seconds(before - start),
                 format_duration(options.max_total));
    old_first = round % 2 == 0 ? random() % 2 == 0 : !old_first;
    for (const bool is_old : {old_first, !old_first}) {
      std::vector<SavedRun>& runs = is_old ? all.old_runs : all.new_runs;
      runs.push_back(run_command(is_old ? options.old_command : options.new_command,
                                 is_old ? old_command : new_command));
    }
    longest = std::max<std::chrono::nanoseconds>(longest, Clock::now() - before);
  }
  if (shows) fmt::print(err, "\r\033[K");
  return all;
}

}  // namespace tutti::tool
