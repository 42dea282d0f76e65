// The names of the transports that UCX has chosen, from the text that it prints.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "worker.hpp"

namespace tutti::backend::ucx {
namespace {

/// The text that UCX prints to a stream.
template <typename Print>
std::string printed(const Print& print) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* stream = ::open_memstream(&text, &size);
  if (stream == nullptr) return {};
  print(stream);
  (void)std::fclose(stream);
  const std::unique_ptr<char, void (*)(void*)> owner(text, std::free);
  return {text, size};
}

}  // namespace

std::string Worker::transports() const {
  std::set<std::string> found;
  for (const auto& endpoint : endpoints_) {
    if (endpoint.handle == nullptr) continue;
    const auto text =
        printed([&](std::FILE* stream) { api_.ep_print_info(endpoint.handle, stream); });
    // A line per lane: "#  lane[0]:  2:tcp/eth0.0 md[2] ...".
    for (auto at = text.find("lane["); at != std::string::npos; at = text.find("lane[", at + 1)) {
      const auto colon = text.find(':', text.find(':', at) + 1);
      const auto end = text.find_first_of(" \n", colon);
      if (colon == std::string::npos || end == std::string::npos) break;
      const auto name = text.substr(colon + 1, end - colon - 1);
      found.insert(name.substr(0, name.rfind('.')));
    }
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

}  // namespace tutti::backend::ucx
