#include "store/tcp_connection.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <new>
#include <utility>

#include "values/fail.hpp"

namespace tutti::internal {
namespace {

using Clock = Deadline::Clock;

/// Until one of the events, or the limit; which of them came. An interruption is none.
int wait_for(int fd, int events, Clock::time_point limit) {
  pollfd ready{fd, static_cast<short>(events), 0};
  timespec time{};
  const timespec* timeout = nullptr;
  if (limit != Clock::time_point::max()) {
    const auto left = std::max(limit - Clock::now(), Clock::duration(0));
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    time = {.tv_sec = static_cast<std::time_t>(seconds.count()),
            .tv_nsec = static_cast<long>(std::chrono::nanoseconds(left - seconds).count())};
    timeout = &time;
  }
  return ::ppoll(&ready, 1, timeout, nullptr) > 0 ? ready.revents : 0;
}

}  // namespace

TcpStoreConnection::TcpStoreConnection(Descriptor socket, std::string name)
    : socket_(std::move(socket)), name_(std::move(name)), scratch_(std::size_t{64} << 10) {}

TcpStoreConnection::~TcpStoreConnection() {
  // A forked child lets go of its copy; the connection is its parent's.
  if (!fork_guard_.forked()) socket_.shut_down();
}

std::optional<TcpStoreConnection::Answer> TcpStoreConnection::call(Request request,
                                                                   Clock::time_point limit) {
  if (fork_guard_.forked())
    failf(Errc::forked, "{} was opened before fork(); open it again in the child", name_);
  request.id = ++last_id_;
  auto frame = encode_request(request);

  std::unique_lock lock(mutex_);
  if (broken_) throw Error(*broken_);
  std::optional<Answer> answer;
  struct Place {
    Place(std::map<std::uint64_t, std::optional<Answer>*>& all, std::uint64_t id,
          std::optional<Answer>* mine)
        : waiting(all), place(all.emplace(id, mine).first) {}
    ~Place() { waiting.erase(place); }
    std::map<std::uint64_t, std::optional<Answer>*>& waiting;
    std::map<std::uint64_t, std::optional<Answer>*>::iterator place;
  } const place(waiting_, request.id, &answer);
  out_.push_back({request.id, std::move(frame)});
  if (!writing_) send_some();

  for (;;) {
    if (answer) return answer;
    if (broken_) throw Error(*broken_);
    if (Clock::now() >= limit) {
      withdraw(request.id);
      return std::nullopt;
    }
    const bool reads = !reading_;
    const bool writes = !writing_ && !out_.empty();
    if (!reads && !writes) {
      if (limit == Clock::time_point::max())
        changed_.wait(lock);
      else
        changed_.wait_until(lock, limit);
      continue;
    }
    reading_ = reading_ || reads;
    writing_ = writing_ || writes;
    lock.unlock();
    const int events = wait_for(socket_.fd(), (reads ? POLLIN : 0) | (writes ? POLLOUT : 0), limit);
    lock.lock();
    if (reads) reading_ = false;
    if (writes) writing_ = false;
    if (writes && events != 0) send_some();
    if (reads && events != 0) receive_some();
    changed_.notify_all();  // Somebody has his answer, or a role is free.
  }
}

void TcpStoreConnection::send_some() {
  while (!out_.empty() && !broken_) {
    const auto& frame = out_.front().frame;
    const auto n = ::send(socket_.fd(), frame.data() + sent_, frame.size() - sent_,
                          MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      // A refusal may still lie in the other direction; reading finds it, or the end.
      if (errno == EPIPE || errno == ECONNRESET) {
        out_.clear();
        sent_ = 0;
      } else if (errno != EAGAIN && errno != EWOULDBLOCK)
        end(Errc::peer_lost, system_text(errno));
      return;
    }
    sent_ += static_cast<std::size_t>(n);
    if (sent_ < frame.size()) continue;
    out_.pop_front();
    sent_ = 0;
  }
}

void TcpStoreConnection::receive_some() {
  try {
    for (int rounds = 0; rounds < 16 && !broken_; ++rounds) {
      const auto n = ::recv(socket_.fd(), scratch_.data(), scratch_.size(), MSG_DONTWAIT);
      if (n == 0) return end(Errc::peer_lost, "the server has closed the connection");
      if (n < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) end(Errc::peer_lost, system_text(errno));
        return;
      }
      reader_.feed(std::span(scratch_).first(static_cast<std::size_t>(n)));
      while (const auto frame = reader_.next()) deliver(*frame);
    }
  } catch (const Error& error) {
    end(Errc::backend, error.message());
  } catch (const std::bad_alloc&) {
    end(Errc::resource_exhausted, "no memory for a reply");
  }
}

void TcpStoreConnection::deliver(const Frame& frame) {
  const auto outcome = static_cast<Outcome>(frame.kind);
  std::string text(reinterpret_cast<const char*>(frame.body.data()),
                   outcome == Outcome::error ? frame.body.size() : 0);
  if (outcome == Outcome::error && frame.id == 0) return end(Errc::backend, text);
  if (outcome < Outcome::value || outcome > Outcome::error || frame.id == 0 ||
      frame.id > last_id_.load())
    failf(Errc::backend, "the server sent a reply that makes no sense: kind {} to request {} of {}",
          frame.kind, frame.id, last_id_.load());
  const auto waiting = waiting_.find(frame.id);
  if (waiting == waiting_.end()) return;  // Its caller's deadline has passed.
  *waiting->second = Answer{
      .outcome = outcome,
      .code = static_cast<Errc>(std::min(frame.code, static_cast<std::uint8_t>(Errc::backend))),
      .body = Bytes(frame.body.begin(), frame.body.end())};
}

/// A request of which nothing was sent need not be sent at all.
void TcpStoreConnection::withdraw(std::uint64_t id) {
  const auto mine = std::ranges::find(out_, id, &Outgoing::id);
  if (mine == out_.end() || (mine == out_.begin() && sent_ > 0)) return;
  out_.erase(mine);
}

void TcpStoreConnection::end(Errc code, const std::string& why) {
  if (broken_) return;
  broken_.emplace(code, fmt::format("{}: {}", name_, why));
  out_.clear();
  changed_.notify_all();
}

}  // namespace tutti::internal
