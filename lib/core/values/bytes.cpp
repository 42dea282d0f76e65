#include "values/bytes.hpp"

#include <limits>

#include "values/fail.hpp"

namespace tutti::internal {

Writer& Writer::count(std::size_t size) {
  constexpr std::size_t most = std::numeric_limits<std::uint32_t>::max();
  if (size > most)
    failf(Errc::count_overflow, "{} elements in one message; at most {} are supported", size, most);
  return u32(static_cast<std::uint32_t>(size));
}

Writer& Writer::block(std::span<const std::byte> bytes) {
  return count(bytes.size()).raw(bytes);
}

Writer& Writer::list(std::span<const std::int64_t> values) {
  count(values.size());
  for (const auto value : values) number(value);
  return *this;
}

Writer& Writer::raw(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  return *this;
}

std::string_view Reader::text() {
  const auto bytes = block();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> Reader::items(std::uint64_t count, std::size_t size) {
  if (count > rest_.size() / size)
    failf(code_, "{} is too short: it needs {} items of {} bytes, {} bytes are left", what_, count,
          size, rest_.size());
  const auto bytes = static_cast<std::size_t>(count) * size;
  const auto taken = rest_.first(bytes);
  rest_ = rest_.subspan(bytes);
  return taken;
}

void Reader::end() const {
  if (!rest_.empty()) failf(code_, "{} has {} bytes too many", what_, rest_.size());
}

}  // namespace tutti::internal
