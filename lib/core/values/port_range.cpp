#include "values/port_range.hpp"

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <random>
#include <system_error>

#include <fmt/format.h>

#include "values/fail.hpp"

namespace tutti::internal {
namespace {

/// 0 if the text is no port.
int port_of(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && port >= 1 && port <= 65535 ? port : 0;
}

}  // namespace

std::string PortRange::text() const {
  return fmt::format("{}-{}", first, last);
}

std::optional<PortRange> port_range() {
  const char* const variable = std::getenv("TUTTI_PORTS");
  const std::string_view text = variable == nullptr ? "" : variable;
  if (text.empty()) return std::nullopt;
  const auto dash = text.find('-');
  const PortRange range{
      .first = port_of(text.substr(0, dash)),
      .last = dash == std::string_view::npos ? 0 : port_of(text.substr(dash + 1))};
  if (range.first == 0 || range.last < range.first)
    failf(Errc::invalid_argument,
          "TUTTI_PORTS is '{}'; it must be two ports from 1 to 65535, such as 29800-29850", text);
  return range;
}

int listen_at_any_port(std::string_view what, const std::function<int(int port)>& listen) {
  const auto range = port_range();
  if (!range) return listen(0);
  const int first = range->size() == 1 ? range->first : range->of_jobs().last + 1;
  const int ports = range->last - first + 1;
  // Processes of one host that begin at different ports rarely want the same one.
  const auto begin = static_cast<int>(std::random_device()() % static_cast<unsigned>(ports));
  for (int i = 0; i < ports; ++i) {
    const int result = listen(first + (begin + i) % ports);
    if (result != EADDRINUSE) return result;
  }
  failf(Errc::resource_exhausted,
        "{}: all ports of TUTTI_PORTS, {}, are in use on this host; set a larger range", what,
        range->text());
}

}  // namespace tutti::internal
