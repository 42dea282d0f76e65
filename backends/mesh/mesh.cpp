#include "mesh.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "backend/record.hpp"
#include "group_calls.hpp"
#include "values/described.hpp"
#include "values/group_errors.hpp"

namespace tutti::backend::mesh {

using namespace std::chrono_literals;

namespace {

/// The first and the longest interval between polls of the store while calls wait.
constexpr std::chrono::milliseconds first_look_ms = 100ms;
constexpr std::chrono::nanoseconds first_look = first_look_ms;
constexpr std::chrono::nanoseconds longest_look = 500ms;
/// The interval between questions to peers, and between polls for theirs.
constexpr auto question_interval = 500ms;
/// A call that has waited for this long is compared.
constexpr auto patience_before_comparing = 500ms;
/// A rank that finds a difference waits for 0.5 s until the others have left the call. Most are
/// found soon, so calls that have waited for less than this look often.
constexpr auto time_of_differences = 3s;

class MeshOfOne final : public Mesh {
 public:
  MeshOfOne() : Mesh({.store = make_memory_store()}) {}
  std::string transport() const override { return {}; }
  bool wakes_a_thread() const noexcept override { return false; }
  std::shared_ptr<Message> message(std::pmr::memory_resource&, int peer, void*, std::size_t,
                                   const MessageCall&) override {
    throw TransportError(TransportError::Kind::lost, peer);
  }
  bool is_sent(int, std::uint64_t) override { return false; }
  bool end_refused(std::uint64_t, std::span<const int>, Deadline) override { return true; }

 private:
  void stop(const Error&) noexcept override {}
};

}  // namespace

std::shared_ptr<Mesh> mesh_of_one() {
  return std::make_shared<MeshOfOne>();
}

bool Mesh::ended(int peer) noexcept {
  // Without a message to this mesh a call may wait, too: in checked mode for the records of all
  // ranks, in a part of a group in another part.
  const bool always = checked_ || names_.is_part();
  const auto serves = [&] { return server_.load(std::memory_order_relaxed) == peer; };
  {
    const std::lock_guard lock(mutex_);
    if (!is_up()) return true;
    if (messages_ == nullptr && (left_.contains(peer) || (!always && !serves()))) return false;
  }
  bool left = left_.contains(peer);
  bool late = false;
  bool store_ended = false;
  try {
    left = left || agreement().left(peer);
    late = !left && agreement().collecting();
  } catch (...) {  // The program may supply the store, so it may throw any type.
    store_ended = true;
  }
  try {
    if (left) left_.insert(peer);
    if (left && serves()) server_ = -1;
  } catch (const std::bad_alloc&) {  // Asks the store again.
  }
  // A rank that left fails only its own messages. If the store has ended, it may have left, unless
  // it serves the store: that rank leaves last.
  const bool may_have_left = store_ended && !serves();
  if (always && !left && !may_have_left) {
    const auto now = std::chrono::steady_clock::now();
    if (!died_) died_ = now;
    late = late || now - *died_ > (checked_ ? 1000ms : 50ms);
  }
  const auto only = left || may_have_left ? std::optional<int>(peer) : std::nullopt;
  if (!late && !waits_in_vain(only, only ? 1000ms : 50ms)) return false;
  fail({.cause = alone_ ? internal::described(Errc::peer_lost,
                                              [&] {
                                                return Error(Errc::peer_lost,
                                                             "all other ranks have left the group",
                                                             {.group = names_.group()});
                                              })
                        : lost(peer)});
  return true;
}

/// True when a message has been doubtful for `patience`, so that it is unlikely to arrive. Until
/// then it may: the last bytes of a rank that left may still be in the kernel's buffer, and after a
/// failure peers may finish an earlier call.
bool Mesh::waits_in_vain(std::optional<int> only, std::chrono::nanoseconds patience) noexcept {
  const std::lock_guard lock(mutex_);
  if (!is_up()) return false;
  const auto now = std::chrono::steady_clock::now();
  for (auto* m = messages_; m != nullptr; m = m->after_) {
    if (only && (m->peer_ != *only || may_come_from_others(*m))) continue;
    if (!m->doubted_) m->doubted_ = now;
    if (now - *m->doubted_ <= patience) continue;
    alone_ = only && m->is_candidate();
    return true;
  }
  return false;
}

/// True for a receive from any rank, one of whose other candidates has not left. Under the lock.
bool Mesh::may_come_from_others(const Message& candidate) const noexcept {
  if (!candidate.is_candidate()) return false;
  for (const auto* m = messages_; m != nullptr; m = m->after_)
    if (m->is_candidate() && m->call_.group == candidate.call_.group &&
        m->call_.ops[0].tag == candidate.call_.ops[0].tag && !left_.contains(m->peer_))
      return true;
  return false;
}

Error Mesh::lost(int peer) const noexcept {
  return internal::described(Errc::peer_lost, [&] { return describe_lost(peer); });
}

Error Mesh::describe_lost(int peer) const {
  bool left = false;
  int ended = peer;
  int dead = peer;
  const char* why = "its process has ended, or its host cannot be reached";
  // Relaxed: no other data depends on the number.
  const int server = server_.load(std::memory_order_relaxed);
  try {
    left = agreement().left(peer);
    // A peer for which the store has been silent for long enough has closed its connections.
    if (!left && peer != server && !agreement().answers()) {
      dead = server;
      why =
          "the store has not answered this rank either: the process that hosts it is stopped, or "
          "its host or link is down";
    }
  } catch (const std::bad_alloc&) {
    throw;
  } catch (...) {
    // Peers that lost the rank which served the store have closed their connections because of
    // that.
    dead = server;
    ended = dead >= 0 ? dead : peer;
    why = dead >= 0
              ? "its process, which served the store, has ended, or its host cannot be reached"
              : "the store has ended too, so the first rank that ended is not known";
  }
  return {Errc::peer_lost,
          left ? fmt::format("rank {} has left the group", names_(peer))
               : fmt::format("the connection to rank {} ended: {}", names_(ended), why),
          {.group = names_.group(), .rank = dead < 0 ? -1 : names_(dead)}};
}

std::optional<Error> Mesh::look() noexcept {
  const auto now = std::chrono::steady_clock::now();
  try {
    if (auto dead = look_at_beats(now)) return dead;
    if (now < next_look_ && heartbeats_.store_answers()) return std::nullopt;
    const auto waiting = waiting_calls(now);
    if (!heartbeats_.store_answers()) return std::nullopt;
    look_pause_ =
        waiting.any && !waiting.is_recent ? std::min(2 * look_pause_, longest_look) : first_look;
    next_look_ = now + look_pause_;
    // A comparison writes, and would block if the store does not answer.
    if (waiting.any && !store_answers()) return heartbeats_.judge_store(awaited_peers());
    if (waiting.any) cancel_refused();
    if (now < next_question_time_) return std::nullopt;
    next_question_time_ = now + question_interval;
    auto cause = ask(waiting);
    if (!cause) cause = answer(waiting);
    if (waiting.any) cancel_refused();
    return cause;
  } catch (...) {  // Without memory or the store no difference is found.
    return std::nullopt;
  }
}

std::chrono::milliseconds Mesh::look_interval() const noexcept {
  if (!heartbeats_.is_on()) return first_look_ms;
  return std::min(first_look_ms,
                  std::chrono::floor<std::chrono::milliseconds>(heartbeats_.pause()));
}

std::optional<Error> Mesh::look_at_beats(std::chrono::steady_clock::time_point now) {
  if (!heartbeats_.is_on()) return std::nullopt;
  auto dead = heartbeats_.look(now, awaited_peers());
  agreement().set_silent(!heartbeats_.store_answers());
  return dead;
}

bool Mesh::store_answers() noexcept {
  const bool answers = heartbeats_.ask_store();
  agreement().set_silent(!answers);
  return answers;
}

/// The peers of messages that have waited since the last look. In checked mode all peers: a call
/// waits for their records before it has messages.
std::vector<int> Mesh::awaited_peers() const {
  std::vector<int> peers;
  if (checked_) {
    for (int r = 0; r < size_; ++r)
      if (r != rank_) peers.push_back(r);
    return peers;
  }
  {
    const std::lock_guard lock(mutex_);
    for (auto* m = messages_; m != nullptr; m = m->after_)
      if (m->since_) peers.push_back(m->peer_);
  }
  std::ranges::sort(peers);
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

void Mesh::cancel_refused() noexcept {
  if (agreement().refusals().read_new().empty()) return;
  cancel_if([&](const Message& m) { return agreement().refusals().of(m.call_.id) != nullptr; });
}

Mesh::Waiting Mesh::waiting_calls(std::chrono::steady_clock::time_point now) {
  const std::lock_guard lock(mutex_);
  Waiting waiting;
  for (auto* m = messages_; m != nullptr; m = m->after_) {
    waiting.any = waiting.any || m->since_.has_value();
    if (!m->since_) m->since_ = now;
    const auto& call = m->call_;
    // The call of a refused message may have ended.
    if (call.group == nullptr || agreement().refusals().of(call.id) != nullptr) continue;
    const bool is_message = call.call == nullptr;
    const auto waited = now - *m->since_;
    if (waited < patience_before_comparing) continue;
    waiting.is_recent = waiting.is_recent || waited < time_of_differences;
    const auto& group = *call.group;
    const auto& names = group.names;
    if (is_message) {
      waiting.messages.emplace_back(
          m->peer_,
          internal::MessageSide{rank_, call.id, call.ops[0].fingerprint, m->message_text()});
    } else if (std::ranges::none_of(waiting.collectives, [&](const auto& other) {
                 return other.group.get() == &group && other.seq == names.shown(call.call->seq);
               })) {
      // The operations of a part are not those of the call.
      waiting.collectives.push_back(
          {group.shared_from_this(), names.shown(call.call->seq),
           names.is_part() ? "" : internal::describe(call.ops, *call.call, names)});
    }
  }
  return waiting;
}

std::optional<std::string> Mesh::find_listed(std::uint64_t pair) const {
  const std::lock_guard lock(mutex_);
  for (const auto* m = messages_; m != nullptr; m = m->after_)
    if (m->call_.group != nullptr && m->call_.call == nullptr && m->call_.id == pair)
      return m->message_text();
  return std::nullopt;
}

std::optional<Error> Mesh::ask(const Waiting& waiting) {
  for (const auto& collective : waiting.collectives)
    if (auto cause = compare(*collective.group, &collective)) return cause;
  // A peer looks at one question at a time, so each look asks about another message.
  std::set<int> asked;
  for (std::size_t i = 0; i < waiting.messages.size(); ++i) {
    const auto& [peer, side] = waiting.messages[(next_question_ + i) % waiting.messages.size()];
    if (asked.insert(peer).second) agreement().ask(peer, side);
  }
  ++next_question_;
  if (!waiting.collectives.empty() || !asked.empty()) agreement().ask_all();
  return std::nullopt;
}

std::optional<Error> Mesh::answer(const Waiting& waiting) {
  if (!agreement().is_asked()) return std::nullopt;
  for (const auto& theirs : agreement().questions())
    if (auto cause = compare_message(theirs)) return cause;
  for (const auto& calls : all_calls()) {
    const auto is_own = [&](const auto& collective) {
      return collective.group->history == calls->history;
    };
    if (std::ranges::any_of(waiting.collectives, is_own)) continue;
    if (auto cause = compare(*calls, nullptr)) return cause;
  }
  return std::nullopt;
}

std::optional<Error> Mesh::compare(const GroupCalls& calls, const Waiting::Collective* waits) {
  const auto& names = calls.history->names();
  auto mine = calls.history->take();
  if (waits != nullptr && !mine.empty() && mine.last() == waits->seq)
    mine.calls.back().text = waits->text;
  const auto found = agreement().compare_calls(names.group(), names, mine, waits != nullptr);
  if (!found) return std::nullopt;
  // A rank in a call compares while it waits between hosts.
  if (waits == nullptr && found->is_last && calls.history->is_running()) return std::nullopt;
  cancel_refused();
  const auto id = internal::call_id(calls.name, calls.names.first_of_shown(found->seq));
  const auto* refusal = agreement().refusals().of(id);
  const bool is_present = waits != nullptr && found->is_last && found->seq == waits->seq;
  if (refusal != nullptr && !refusal->is_difference && !is_present)
    return internal::broken_by_refusal(Error(
        Errc::mismatch, fmt::format("rank {} refused {}", names_(refusal->rank), refusal->text),
        {.group = names.group(), .rank = names_(refusal->rank)}));
  // The ranks leave this call already; this one may be about to.
  if (refusal != nullptr) return std::nullopt;
  if (!is_present)
    return Error(Errc::mismatch, found->text,
                 {.group = names.group(),
                  .operation = std::string(name_of(found->operation)),
                  .seq = static_cast<std::int64_t>(found->seq)});
  agreement().refusals().add(
      {.call = id, .rank = rank_, .text = found->text, .entered = true, .is_difference = true});
  return std::nullopt;
}

std::optional<Error> Mesh::compare_message(const internal::MessageSide& theirs) {
  for (const auto& calls : all_calls()) {
    auto mine = calls->posted.find(theirs.pair, calls->names);
    if (!mine || mine->fingerprint == theirs.fingerprint) continue;
    cancel_refused();
    // The question may be older than its answer.
    if (agreement().refusals().of(theirs.pair) != nullptr) return std::nullopt;
    const auto listed = find_listed(theirs.pair);
    if (listed) mine->text = *listed;
    const auto place = [&](int mesh_rank) {
      return static_cast<int>(std::ranges::find(calls->ranks, mesh_rank) - calls->ranks.begin());
    };
    const bool sends = mine->text.starts_with(name_of(Operation::send));
    const auto text = internal::sides_text(
        calls->names, place(sends ? rank_ : theirs.rank), sends ? mine->text : theirs.text,
        place(sends ? theirs.rank : rank_), sends ? theirs.text : mine->text);
    // A side that has ended: the transport had taken its data.
    if (!listed) return Error(Errc::mismatch, text, {.group = calls->names.group()});
    agreement().refusals().add(
        {.call = theirs.pair, .rank = rank_, .text = text, .entered = true, .is_difference = true});
    return std::nullopt;
  }
  return std::nullopt;
}

std::vector<std::shared_ptr<const GroupCalls>> Mesh::all_calls() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const GroupCalls>> all;
  for (const auto& weak : calls_)
    if (auto calls = weak.lock()) all.push_back(std::move(calls));
  return all;
}

void Mesh::add_calls(const std::shared_ptr<const GroupCalls>& calls) {
  const std::lock_guard lock(mutex_);
  std::erase_if(calls_, [](const auto& weak) { return weak.expired(); });
  calls_.push_back(calls);
}

void Mesh::end_calls(const GroupCalls& calls) noexcept {
  const auto& names = calls.history->names();
  const bool has_all_ranks = calls.name == names.group();  // One part does it for all.
  if (!has_all_ranks || !is_up() || !agreement().answers()) return;
  try {
    const auto found =
        agreement().compare_calls(calls.name + "/end", names, calls.history->take(), true);
    if (found)
      log(LogLevel::error, fmt::format("group '{}' has ended: {}", names.group(), found->text));
  } catch (...) {  // Without the store nothing is compared.
  }
}

void Mesh::log(LogLevel level, std::string_view text) const noexcept {
  try {
    if (logger_) logger_(level, text);
  } catch (...) {  // An error of the logger is not one of the group.
  }
}

void Mesh::on_broken(const Error& cause) noexcept {
  decltype(listeners_) listeners;
  {
    const std::lock_guard lock(mutex_);
    listeners.swap(listeners_);
  }
  for (const auto& weak : listeners)
    if (const auto listener = weak.lock()) (*listener)(cause);
}

void Mesh::listen(const std::shared_ptr<const Listener>& listener) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_broken()) {  // Then on_broken() still takes the list.
      std::erase_if(listeners_, [](const auto& weak) { return weak.expired(); });
      listeners_.push_back(listener);
      return;
    }
  }
  (*listener)(*cause());
}

void Message::enlist() {
  const std::lock_guard lock(mesh_.mutex_);
  // A mesh that fails after this test cancels the messages in the list.
  if (!mesh_.is_up()) throw TransportError(TransportError::Kind::failed, peer_);
  if (mesh_.agreement().refusals().of(call_.id) != nullptr)
    throw TransportError(TransportError::Kind::refused, peer_);
  after_ = mesh_.messages_;
  if (after_ != nullptr) after_->before_ = this;
  mesh_.messages_ = this;
  listed_ = true;
}

void Message::leave() noexcept {
  const std::lock_guard lock(mesh_.mutex_);
  if (!std::exchange(listed_, false)) return;
  (before_ == nullptr ? mesh_.messages_ : before_->after_) = after_;
  if (after_ != nullptr) after_->before_ = before_;
}

std::string Message::message_text() const {
  if (!call_.text.empty()) return std::string(call_.text);
  return internal::describe(call_.ops[0], call_.group->names);
}

TransportError Message::cancelled() const {
  const bool refused = mesh_.is_up() && mesh_.agreement().refusals().of(call_.id) != nullptr;
  return {refused ? TransportError::Kind::refused : TransportError::Kind::failed, peer_};
}

}  // namespace tutti::backend::mesh
