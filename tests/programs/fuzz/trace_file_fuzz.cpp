#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <tutti/error.hpp>
#include <tutti/trace_file.hpp>

#include "group/trace_layout.hpp"

// A trace file may have any bytes: a process may have died while it wrote, and a directory may have
// files of others. Feeds the input to the reader as it is, and as changes to a valid file. A file
// is refused, or has ranks and operations that exist and can be printed.

namespace {

using namespace tutti;
using namespace tutti::internal;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

void check(const Trace& trace, bool messages) {
  require(trace.size() <= TraceRing::length, "a ring has 64 entries");
  for (const auto& e : trace) {
    require(is_point_to_point(e.operation) == messages, "operations are in their ring");
    for (const char c : to_string(e)) require(c >= ' ' && c <= '~', "an entry is printable");
  }
}

void read(std::span<const std::byte> bytes) {
  try {
    const auto file = read_trace(bytes);
    require(file.rank >= 0 && file.rank < file.size, "the rank is in the group");
    require(file.pid > 0, "pid is one process");
    for (const auto* text : {&file.group, &file.host})
      for (const char c : *text) require(c >= ' ' && c <= '~', "texts are printable");
    check(file.collectives, false);
    check(file.messages, true);
  } catch (const Error& error) {
    require(error.code() == Errc::invalid_argument, "a damaged file is refused");
  }
}

std::vector<std::byte> valid_file() {
  const auto layout = std::make_unique<TraceLayout>();
  layout->magic = TraceLayout::known_magic;
  layout->rank = 1;
  layout->size = 3;
  layout->pid = 1;
  layout->group = {"world"};
  for (std::uint64_t i = 0; i < 70; ++i) {
    layout->rings.collectives.begin(i, i, Operation::barrier, {.kind = Operation::barrier}, 1,
                                    false, "step");
    layout->rings.messages.begin(i, i, Operation::recv, {.kind = Operation::recv, .peer = 0}, 1,
                                 true, "");
  }
  const auto bytes = std::as_bytes(std::span(layout.get(), 1));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

// The name is libFuzzer's.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);   // NOLINT
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT
  static const auto valid = valid_file();
  auto bytes = std::as_bytes(std::span(data, size));
  read(bytes);
  // Each ten bytes write eight bytes of the valid file, at an offset of two.
  auto changed = valid;
  for (; bytes.size() >= 10; bytes = bytes.subspan(10)) {
    std::uint16_t offset = 0;
    std::memcpy(&offset, bytes.data(), sizeof offset);
    std::memcpy(changed.data() + offset % (changed.size() - 7), bytes.data() + 2, 8);
  }
  read(changed);
  return 0;
}
