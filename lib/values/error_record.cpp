#include "values/error_record.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include <fmt/format.h>

namespace tutti::internal {

std::string encode_error(const Error& e) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", static_cast<int>(e.code()), e.where().rank,
                     e.where().seq, e.where().group, e.where().operation, e.message());
}

Error decode_error(std::string_view text) {
  const auto line = [&] {
    const auto end = std::min(text.find('\n'), text.size());
    const auto part = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return part;
  };
  const auto number = [&] {
    std::int64_t value = -1;
    const auto part = line();
    std::from_chars(part.data(), part.data() + part.size(), value);
    return value;
  };
  const auto code = static_cast<Errc>(number());
  Error::Where where;
  where.rank = static_cast<int>(number());
  where.seq = number();
  where.group = line();
  where.operation = line();
  return {code, std::string(text), where};
}

}  // namespace tutti::internal
