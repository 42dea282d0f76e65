#include "launch/pmi.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "launch/mpi_in_process.hpp"
#include "values/fail.hpp"

namespace tutti::internal {
namespace {

constexpr std::size_t most_line_bytes = 16 * 1024;
int pmi_descriptor() {
  const auto text = PmiConnection::given();
  int descriptor = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), descriptor);
  if (error != std::errc() || end != text.data() + text.size() || descriptor < 0)
    failf(Errc::invalid_argument, "PMI_FD is '{}'; it must be the number of a descriptor", text);
  return descriptor;
}

/// The value of `name` in "cmd=x name=value ..."; empty if it is missing.
std::string_view pmi_field(std::string_view line, std::string_view name) {
  const auto begin = (' ' + std::string(line)).find(fmt::format(" {}=", name));
  if (begin == std::string::npos) return {};
  line.remove_prefix(begin + name.size() + 1);
  return line.substr(0, line.find(' '));
}

}  // namespace

std::string_view PmiConnection::given() noexcept {
  const char* text = std::getenv("PMI_FD");
  return text == nullptr ? std::string_view() : std::string_view(text);
}

PmiConnection::PmiConnection(Deadline deadline)
    : socket_(pmi_descriptor()), deadline_(deadline), shared_(mpi_is_initialized()) {
  if (!shared_) (void)ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init");
  space_ = pmi_field(ask("cmd=get_my_kvsname", "my_kvsname"), "kvsname");
}

PmiConnection::~PmiConnection() {
  if (shared_) return;
  try {
    (void)ask("cmd=finalize", "finalize_ack");
  } catch (const Error&) {  // The launcher has gone, or ends the ranks.
  }
}

std::size_t PmiConnection::most_letters() {
  const auto answer = ask("cmd=get_maxes", "maxes");
  const auto text = pmi_field(answer, "vallen_max");
  std::size_t most = 0;
  std::from_chars(text.data(), text.data() + text.size(), most);
  return most == 0 ? 0 : most - 1;  // With the null of a C string.
}

void PmiConnection::put(const std::string& key, const std::string& value) {
  (void)ask(fmt::format("cmd=put kvsname={} key={} value={}", space_, key, value), "put_result");
}

void PmiConnection::wait_for_all() {
  (void)ask("cmd=barrier_in", "barrier_out");
}

std::string PmiConnection::get(const std::string& key) {
  const auto answer = ask(fmt::format("cmd=get kvsname={} key={}", space_, key), "get_result");
  return std::string(pmi_field(answer, "value"));
}

std::string PmiConnection::ask(std::string_view command, std::string_view expected) {
  const auto line = fmt::format("{}\n", command);
  for (std::size_t sent = 0; sent < line.size();) {
    const auto n = ::send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      failf(Errc::backend,
            "the launcher's key-value space (PMI_FD={}) cannot be used: {}; an earlier program of "
            "this rank may have used it; {}",
            socket_, std::strerror(errno), instead);
    sent += static_cast<std::size_t>(n);
  }
  const auto answer = read_line(command);
  const auto rc = pmi_field(answer, "rc");
  if (pmi_field(answer, "cmd") != expected || (!rc.empty() && rc != "0"))
    failf(Errc::unsupported,
          "PMI: the launcher answered '{}' to '{}'; expected cmd={} without an error; {}",
          answer.substr(0, answer.find(" value=")), command.substr(0, command.find(" value=")),
          expected, instead);
  return answer;
}

std::string PmiConnection::read_line(std::string_view command) {
  const auto shown = command.substr(0, command.find(" value="));
  std::string line;
  // Byte by byte: what follows the line belongs to the next reader of the descriptor.
  while (line.size() < most_line_bytes) {
    pollfd readable{.fd = socket_, .events = POLLIN, .revents = 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_.remaining()).count();
    const auto wait = std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max());
    const int ready = ::poll(&readable, 1, static_cast<int>(wait));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0)
      failf(Errc::timeout, "PMI: the launcher has not answered '{}' in time{}", shown,
            shown == "cmd=barrier_in" ? ": not all ranks have called init()" : "");
    char letter = 0;
    const auto n = ::recv(socket_, &letter, 1, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      failf(Errc::backend,
            "PMI: the launcher closed the connection (PMI_FD={}) and did not answer '{}'{}{}; "
            "{}",
            socket_, shown, n < 0 ? ": " : "", n < 0 ? std::strerror(errno) : "", instead);
    if (letter == '\n') return line;
    line += letter;
  }
  failf(Errc::unsupported, "PMI: the answer to '{}' is longer than {} bytes", shown,
        most_line_bytes);
}

}  // namespace tutti::internal
