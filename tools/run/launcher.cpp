#include "run/launcher.hpp"

#include <dlfcn.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include <tutti/version.hpp>

#include "common/exit_code.hpp"
#include "common/text.hpp"
#include "run/child.hpp"
#include "run/orphan_reaper.hpp"
#include "run/output.hpp"
#include "run/rendezvous.hpp"

namespace tutti::tool {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Time from SIGTERM to SIGKILL; the whole end takes less than a second.
constexpr auto term_time = 500ms;
/// Time for processes that outlive their rank (the `tee` of its log) to end by themselves.
constexpr auto leftover_time = 500ms;
/// Time for the ranks to end one after the other after the user's signal.
constexpr auto signal_grace = 10s;
/// A signal sent to both a process and its group arrives twice; within this time it counts once.
/// Longer than the interval in which the ranks ignore a repeated signal, so that the ranks count
/// every forwarded signal.
constexpr auto again_time = 100ms;
/// Time for the ranks to save results after the second signal.
constexpr auto again_grace = 5s;

/// One stream of one rank.
struct Stream {
  Descriptor from;
  Prefixer lines;
  Sink* to;
  pid_t rank_pid;
};

struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  std::optional<int> status{};  ///< Status of waitpid(), after the end.
  /// No process of its group is left; another group may get the number.
  bool group_gone = false;
};

int code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool same_file(int a, int b) {
  struct stat first {
  }, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

/// The folder of the library that this program uses; empty: it is a part of the program.
std::string library_folder() {
  Dl_info info{};
  (void)::dladdr(reinterpret_cast<const void*>(&library_version_string), &info);
  std::error_code ignored;
  const std::filesystem::path file = info.dli_fname == nullptr ? "" : info.dli_fname;
  if (!file.filename().string().starts_with("libtutti")) return {};  // A static library.
  return std::filesystem::canonical(file, ignored).parent_path().string();
}

class Launch {
 public:
  explicit Launch(const LaunchOptions& options) : options_(options), rendezvous_(options) {
    // On a terminal both streams go through one sink, so that lines do not mix.
    out_ = std::make_unique<Sink>(STDOUT_FILENO);
    if (!same_file(STDOUT_FILENO, STDERR_FILENO)) err_ = std::make_unique<Sink>(STDERR_FILENO);
  }

  int run();

 private:
  void start(const RankAssignment& assignment);
  std::vector<std::string> environment(const RankAssignment& assignment, int local_rank) const;
  void step();
  bool done() const;
  int timeout_ms() const;
  void read(Stream& stream);
  void take_signal(int signal);
  void stop(int signal);
  void reap();
  bool goes_on_without(const RankProcess& rank);
  void judge(const std::vector<RankProcess*>& ended);
  void tell_stopped(const RankProcess& rank, int signal);
  std::string name(const RankProcess& rank) const;
  std::string describe(const RankProcess& rank) const;
  void end_after_failure();
  void end_in(std::chrono::nanoseconds time);
  void end_what_is_due();
  void signal_groups(int signal);
  int conclude();
  Sink& err() { return err_ ? *err_ : *out_; }

  const LaunchOptions& options_;
  // Declared before parent_, so that the reaper does not inherit its signal mask.
  OrphanReaper reaper_{};
  ParentScope parent_{};  // Before all threads, which inherit its signal mask.
  Rendezvous rendezvous_;
  std::unique_ptr<Sink> out_{};
  std::unique_ptr<Sink> err_{};  // Null: both go to *out_.
  std::vector<RankProcess> ranks_{};
  std::vector<Stream> streams_{};
  std::size_t running_ = 0;  // Ranks that run; other processes of a rank may remain.
  bool no_child_ = true;
  std::optional<ExitStatus> failure_{};  // The first on this node.
  int largest_status_ = 0;               // Worst status of the ranks that ended by themselves.
  int stopped_by_ = 0;                   // The user's first signal.
  int stop_signals_ = 0;                 // The number of the user's signals.
  Clock::time_point stopped_at_{};       // The time of the last of these signals.
  bool ending_ = false;                  // SIGTERM was sent.
  bool lacks_library_ = false;           // The loader of a rank has not found libtutti.
  std::vector<int> ended_ranks_{};
  std::optional<Clock::time_point> term_at_{};
  std::optional<Clock::time_point> kill_at_{};
  std::optional<Clock::time_point> give_up_at_{};  // Then it no longer waits for output or nodes.
};

std::vector<std::string> Launch::environment(const RankAssignment& assignment,
                                             int local_rank) const {
  const auto rank = std::to_string(assignment.first_rank + local_rank);
  const auto size = std::to_string(assignment.size);
  const auto local = std::to_string(local_rank);
  const auto local_size = std::to_string(options_.ranks);
  const auto node = std::to_string(options_.node);
  std::map<std::string, std::string> mine{{"TUTTI_RANK", rank},
                                          {"TUTTI_SIZE", size},
                                          {"TUTTI_LOCAL_RANK", local},
                                          {"TUTTI_LOCAL_SIZE", local_size},
                                          {"TUTTI_NODE", node},
                                          {"TUTTI_STORE", assignment.store},
                                          {"TUTTI_STORE_HOSTED", "1"},
                                          {"RANK", rank},
                                          {"WORLD_SIZE", size},
                                          {"LOCAL_RANK", local},
                                          {"LOCAL_WORLD_SIZE", local_size},
                                          {"GROUP_RANK", node},
                                          {"MASTER_ADDR", assignment.master_host},
                                          {"MASTER_PORT", std::to_string(assignment.master_port)}};
  if (!assignment.token_file.empty()) mine["TUTTI_TOKEN_FILE"] = assignment.token_file;
  // stdout of a rank is a terminal, but its lines may go to a file.
  if (options_.output == LaunchOptions::Output::prefixed && ::isatty(STDOUT_FILENO) == 0)
    mine["TERM"] = "dumb";
  for (const auto& [name, value] : options_.variables) mine[name] = value;
  std::vector<std::string> all;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    // Removes the variables of an outer torchrun, whose agent is not at the MASTER_PORT set here.
    if (text.starts_with("TORCHELASTIC_")) continue;
    if (!mine.contains(std::string(text.substr(0, text.find('='))))) all.emplace_back(text);
  }
  for (const auto& [name, value] : mine) all.push_back(fmt::format("{}={}", name, value));
  return all;
}

void Launch::start(const RankAssignment& assignment) {
  for (int local = 0; local < options_.ranks; ++local) {
    ChildOptions child{.command = options_.command, .environment = environment(assignment, local)};
    child.own_output = options_.output == LaunchOptions::Output::prefixed;
    // Only rank 0 reads piped input. No rank reads a terminal, which would stop a process of
    // another process group.
    child.own_input = assignment.first_rank + local != 0 || ::isatty(STDIN_FILENO) != 0;
    no_child_ = false;
    Child started = start_child(child, parent_);
    const int rank = assignment.first_rank + local;
    reaper_.watch(started.pid);
    ranks_.push_back({rank, started.pid});
    ++running_;
    if (!child.own_output) continue;
    const auto prefix = fmt::format("[{}] ", rank);
    streams_.push_back({std::move(started.out), Prefixer(prefix), out_.get(), started.pid});
    streams_.push_back({std::move(started.err), Prefixer(prefix), &err(), started.pid});
  }
}

int Launch::run() {
  while (!rendezvous_.assignment()) {
    std::array<pollfd, 2> events{
        {{parent_.signals(), POLLIN, 0}, {rendezvous_.changed(), POLLIN, 0}}};
    (void)::poll(events.data(), events.size(), -1);
    rendezvous_.clear_changed();
    if (const auto end = rendezvous_.status())
      throw Failure(static_cast<Exit>(end->code), end->text);
    const int signal = parent_.next_signal();
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT)
      return 128 + signal;
  }
  std::optional<Failure> not_started;
  try {
    start(*rendezvous_.assignment());
  } catch (const Failure& failure) {
    not_started = failure;
    failure_ = exit_status(failure);
    rendezvous_.report(*failure_);
    end_in(0s);
  }
  while (!done()) step();
  if (not_started) throw *not_started;
  return conclude();
}

bool Launch::done() const {
  if (!no_child_) return false;
  const bool written = streams_.empty() && out_->empty() && (!err_ || err_->empty());
  return (written && rendezvous_.status()) || (give_up_at_ && Clock::now() >= *give_up_at_);
}

int Launch::timeout_ms() const {
  auto next = Clock::time_point::max();
  for (const auto& moment : {term_at_, kill_at_, no_child_ ? give_up_at_ : std::nullopt})
    next = std::min(next, moment.value_or(next));
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

void Launch::step() {
  std::vector<pollfd> events{{parent_.signals(), POLLIN, 0}, {rendezvous_.changed(), POLLIN, 0}};
  std::vector<Sink*> sinks;
  for (Sink* sink : {out_.get(), err_.get()}) {
    if (sink == nullptr || sink->empty()) continue;
    sinks.push_back(sink);
    events.push_back({sink->descriptor(), POLLOUT, 0});
  }
  for (const Stream& stream : streams_)
    events.push_back({stream.to->full() ? -1 : stream.from.get(), POLLIN, 0});
  // After the last child no more output is expected, although another process may hold a pipe open.
  const bool last = no_child_ && !streams_.empty();
  if (::poll(events.data(), events.size(), last ? 0 : timeout_ms()) < 0 && errno != EINTR)
    throw Failure(Exit::internal, fmt::format("poll: {}", std::strerror(errno)));

  for (std::size_t i = 0; i < sinks.size(); ++i)
    if (events[2 + i].revents != 0) sinks[i]->write_some();
  for (std::size_t i = 0; i < streams_.size(); ++i)
    if (last || events[2 + sinks.size() + i].revents != 0) read(streams_[i]);
  std::erase_if(streams_, [](const Stream& stream) { return !stream.from; });

  for (int signal = parent_.next_signal(); signal != 0; signal = parent_.next_signal())
    take_signal(signal);
  rendezvous_.clear_changed();
  if (const auto end = rendezvous_.status(); end && end->code != 0 && running_ > 0)
    end_after_failure();
  reap();
  end_what_is_due();
}

void Launch::read(Stream& stream) {
  std::array<char, 65536> bytes;
  for (;;) {
    const auto n = ::read(stream.from.get(), bytes.data(), bytes.size());
    if (n > 0 && stream.to->broken()) {
      // As in a shell. A terminal sends none by itself.
      for (const RankProcess& rank : ranks_)
        if (rank.pid == stream.rank_pid && !rank.group_gone) ::kill(-rank.pid, SIGPIPE);
      return stream.from.close();
    }
    if (n > 0) {
      const std::string_view text(bytes.data(), static_cast<std::size_t>(n));
      lacks_library_ =
          lacks_library_ || text.find("loading shared libraries: libtutti") != text.npos;
      stream.lines.take(text, stream.to->waiting());
    } else if (n == 0 || errno == EIO || no_child_) {
      stream.lines.finish(stream.to->waiting());
      return stream.from.close();
    }
    if (!no_child_) return;  // Continues with the other streams.
  }
}

void Launch::take_signal(int signal) {
  switch (signal) {
    case SIGCHLD:
      return;  // reap() polls anyway.
    case SIGTSTP:
      signal_groups(SIGTSTP);
      (void)::raise(SIGSTOP);  // SIGCONT will be the next signal.
      return;
    case SIGCONT:
    case SIGUSR1:
    case SIGUSR2:
      return signal_groups(signal);
    default:
      return stop(signal);
  }
}

void Launch::stop(int signal) {
  const auto now = Clock::now();
  if (stop_signals_ > 0 && now - stopped_at_ < again_time) return;
  if (stop_signals_++ == 0) stopped_by_ = signal;
  stopped_at_ = now;
  signal_groups(signal);
  // If no rank runs, the launcher waits only for other nodes and for readers of the output, so this
  // signal ends it, even if it is the first.
  if (stop_signals_ == 2 && running_ > 0)
    kill_at_ = give_up_at_ = now + again_grace;
  else if (stop_signals_ > 1 || running_ == 0)
    kill_at_ = give_up_at_ = now;
}

void Launch::reap() {
  std::vector<RankProcess*> ended;
  while (!no_child_) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED);
    if (pid == 0) break;
    if (pid < 0) {
      no_child_ = errno == ECHILD;
      continue;
    }
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(),
                                   [pid](const RankProcess& r) { return r.pid == pid; });
    if (rank == ranks_.end()) continue;  // An orphan of a rank.
    if (WIFSTOPPED(status)) {
      tell_stopped(*rank, WSTOPSIG(status));
      continue;
    }
    rank->status = status;
    --running_;
    ended.push_back(&*rank);
  }
  for (RankProcess& rank : ranks_) {
    if (!rank.status || rank.group_gone || ::kill(-rank.pid, 0) == 0) continue;
    rank.group_gone = true;
    reaper_.forget(rank.pid);
  }
  judge(ended);
  if (no_child_) term_at_ = kill_at_ = std::nullopt;
}

void Launch::judge(const std::vector<RankProcess*>& ended) {
  if (ended.empty()) return;
  if (!ending_) {
    // If several ranks ended at once, a rank that a signal ended is the cause; the others lost this
    // peer.
    const RankProcess* cause = nullptr;
    for (const RankProcess* rank : ended) {
      largest_status_ = std::max(largest_status_, code_of(*rank->status));
      if (goes_on_without(*rank)) continue;
      if (*rank->status != 0 && (cause == nullptr || WIFSIGNALED(*rank->status))) cause = rank;
    }
    if (cause != nullptr && !failure_) {
      const bool silent = options_.ranks_report && !WIFSIGNALED(*cause->status);
      failure_ = ExitStatus{code_of(*cause->status), silent ? "" : describe(*cause)};
      rendezvous_.report(*failure_);
    }
    if (failure_) end_after_failure();
  }
  if (running_ > 0) return;
  if (!failure_) rendezvous_.report({});
  end_in(leftover_time);
}

/// LaunchOptions::keep_going. Prints the rank.
bool Launch::goes_on_without(const RankProcess& rank) {
  const bool lost = std::ranges::all_of(
      ranks_, [](const RankProcess& r) { return r.status && WIFSIGNALED(*r.status); });
  if (!options_.keep_going || stop_signals_ > 0 || !WIFSIGNALED(*rank.status) || lost) return false;
  err().waiting() += fmt::format("{}; the other ranks go on\n", describe(rank));
  return true;
}

/// Ranks that a peer waits for may be stopped by mistake. The launcher passes SIGTSTP on itself.
void Launch::tell_stopped(const RankProcess& rank, int signal) {
  if (signal == SIGTSTP || ending_) return;
  err().waiting() += fmt::format("{}is stopped by signal {} ({}); kill -CONT {} continues it\n",
                                 name(rank), signal, ::strsignal(signal), rank.pid);
}

std::string Launch::name(const RankProcess& rank) const {
  auto text = fmt::format("rank {}", rank.rank);
  if (options_.nodes > 1) text += fmt::format(" on node {}", options_.node);
  return text + fmt::format(" (pid {}) ", rank.pid);
}

std::string Launch::describe(const RankProcess& rank) const {
  const auto text = name(rank);
  const int status = *rank.status;
  if (!WIFSIGNALED(status)) return text + fmt::format("ended with status {}", WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  return text + fmt::format("was ended by signal {} ({}{})", signal, ::strsignal(signal),
                            WCOREDUMP(status) ? ", core dumped" : "");
}

void Launch::end_after_failure() {
  const std::chrono::nanoseconds least = stopped_by_ == 0 ? 0s : signal_grace;
  end_in(std::max(options_.grace, least));
}

void Launch::end_in(std::chrono::nanoseconds time) {
  const auto now = Clock::now();
  const auto at = time >= Clock::time_point::max() - now ? Clock::time_point::max() : now + time;
  if (!ending_ && (!term_at_ || at < *term_at_)) term_at_ = at;
}

void Launch::end_what_is_due() {
  const auto now = Clock::now();
  if (term_at_ && now >= *term_at_) {
    term_at_.reset();
    ending_ = true;
    for (const RankProcess& rank : ranks_)
      if (!rank.status) ended_ranks_.push_back(rank.rank);
    signal_groups(SIGTERM);
    signal_groups(SIGCONT);
    kill_at_ = now + term_time;
  }
  if (kill_at_ && now >= *kill_at_) {
    ending_ = true;
    signal_groups(SIGKILL);
    signal_children(SIGKILL);
    kill_at_ = now + 50ms;  // Kills again, when this process has adopted their children.
  }
}

void Launch::signal_groups(int signal) {
  for (const RankProcess& rank : ranks_)
    if (!rank.group_gone) ::kill(-rank.pid, signal);
}

int Launch::conclude() {
  auto end = rendezvous_.status();
  if (!end) end = failure_ ? *failure_ : ExitStatus{128 + stopped_by_};
  if (!end->text.empty())
    fmt::print(stderr, "error: {}{}\n", end->text,
               ended_ranks_.empty()
                   ? ""
                   : fmt::format("; ended rank{} {}", ended_ranks_.size() == 1 ? "" : "s",
                                 format_ranges(ended_ranks_)));
  if (const auto folder = library_folder(); lacks_library_ && !folder.empty())
    fmt::print(stderr,
               "hint: set LD_LIBRARY_PATH={}, or after meson install run ldconfig as root\n",
               folder);
  if (options_.ranks_report) end->code = std::max(largest_status_, end->code);
  // After one signal the ranks may exit with 0. A second signal counts as an interrupt.
  return stop_signals_ > 1 && end->code == 0 ? 128 + stopped_by_ : end->code;
}

}  // namespace

int launch(const LaunchOptions& options) {
  return Launch(options).run();
}

}  // namespace tutti::tool
