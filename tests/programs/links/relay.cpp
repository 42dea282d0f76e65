// The network between two TAP devices, whose descriptors it inherits (links_test.py).
//   relay TAP TAP
// Each line of the input replaces the settings: the loss of the frames that leave side 0 and side
// 1, duplication and reordering, as fractions; the delay in ms; the rate of each TCP connection and
// direction in Mbit/s, 0 for any; a TCP port whose frames are not lost, 0 for none.

#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <queue>
#include <random>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Ports = std::pair<int, int>;

constexpr auto late = 1ms;  // A frame that others overtake.

struct Settings {
  std::array<double, 2> loss{};
  double duplication = 0;
  double reordering = 0;
  double delay_ms = 0;
  double rate_mbit = 0;
  int spared_port = 0;
};

struct Frame {
  Clock::time_point due;
  std::uint64_t number = 0;
  std::size_t from = 0;
  std::vector<char> data{};
  bool operator>(const Frame& other) const {
    return std::tie(due, number) > std::tie(other.due, other.number);
  }
};

/// Of Ethernet, IPv4 without options and TCP; else {0, 0}.
Ports ports_of(const std::vector<char>& frame) {
  if (frame.size() < 38 || frame[12] != 8 || frame[13] != 0 || frame[23] != IPPROTO_TCP) return {};
  std::array<std::uint16_t, 2> ports{};
  std::memcpy(ports.data(), frame.data() + 34, sizeof ports);
  return {ntohs(ports[0]), ntohs(ports[1])};
}

class Network {
 public:
  explicit Network(std::array<int, 2> taps) : taps_(taps) {}

  void run() {
    std::array<pollfd, 3> events{
        {{STDIN_FILENO, POLLIN, 0}, {taps_[0], POLLIN, 0}, {taps_[1], POLLIN, 0}}};
    for (;;) {
      const std::chrono::nanoseconds time =
          frames_.empty() ? 1s : std::max<Clock::duration>(frames_.top().due - Clock::now(), 0ns);
      const timespec limit{.tv_sec = time / 1s, .tv_nsec = time % 1s / 1ns};
      (void)::ppoll(events.data(), events.size(), &limit, nullptr);
      if (events[0].revents != 0 && !read_settings()) return;
      for (const std::size_t side : {0U, 1U})
        if (events[1 + side].revents != 0) take(side);
      for (; !frames_.empty() && frames_.top().due <= Clock::now(); frames_.pop()) {
        const auto& frame = frames_.top();
        // Fails if the device is down or gone.
        (void)!::write(taps_[1 - frame.from], frame.data.data(), frame.data.size());
      }
    }
  }

 private:
  bool read_settings() {
    std::array<char, 4096> text{};
    const auto bytes = ::read(STDIN_FILENO, text.data(), text.size());
    std::istringstream lines(std::string(text.data(), static_cast<std::size_t>(bytes)));
    for (Settings s; lines >> s.loss[0] >> s.loss[1] >> s.duplication >> s.reordering >>
                     s.delay_ms >> s.rate_mbit >> s.spared_port;)
      settings_ = s;
    return bytes > 0;
  }

  void take(std::size_t side) {
    for (int i = 0; i < 64; ++i) {
      const auto bytes = ::read(taps_[side], buffer_.data(), buffer_.size());
      if (bytes < 0 && errno != EAGAIN) ::usleep(1000);  // The device is gone.
      if (bytes <= 0) return;
      add(side, {buffer_.data(), buffer_.data() + bytes});
    }
  }

  void add(std::size_t side, const std::vector<char>& data) {
    const auto& s = settings_;
    const auto ports = ports_of(data);
    // Others than those of TCP are also spared: address resolution.
    const bool is_spared =
        s.spared_port != 0 &&
        (ports == Ports() || ports.first == s.spared_port || ports.second == s.spared_port);
    if (happens(s.loss[side]) && !is_spared) return;
    auto due = Clock::now();
    if (s.rate_mbit > 0 && ports != Ports()) {
      auto& busy = busy_[side][ports];
      busy = due = std::max(due, busy) + std::chrono::nanoseconds(static_cast<std::int64_t>(
                                             8e3 * static_cast<double>(data.size()) / s.rate_mbit));
    }
    due += std::chrono::nanoseconds(static_cast<std::int64_t>(1e6 * s.delay_ms));
    if (happens(s.reordering)) due += late;
    for (int copies = happens(s.duplication) ? 2 : 1; copies > 0; --copies)
      frames_.push({due, number_++, side, data});
  }

  bool happens(double probability) { return std::bernoulli_distribution(probability)(dice_); }

  std::array<int, 2> taps_;
  Settings settings_;
  std::minstd_rand dice_{1};
  std::uint64_t number_ = 0;
  std::array<std::map<Ports, Clock::time_point>, 2> busy_;  // By the side that sends.
  std::priority_queue<Frame, std::vector<Frame>, std::greater<>> frames_;
  std::array<char, 65536> buffer_{};
};

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> arguments(values, values + count);
  ::prctl(PR_SET_TIMERSLACK, 1);
  Network({std::stoi(arguments.at(1)), std::stoi(arguments.at(2))}).run();
}
