#include "values/error_record.hpp"

#include <cstdint>

#include "values/bytes.hpp"
#include "values/fail.hpp"

namespace tutti::internal {

std::string encode_error(const Error& error) {
  const auto& where = error.where();
  Writer out;
  out.u8(static_cast<std::uint8_t>(error.code())).i32(where.rank).i64(where.seq);
  out.text(where.group).text(where.operation).text(error.message());
  out.u32(static_cast<std::uint32_t>(where.missing.size())).numbers(where.missing);
  out.u8(where.earlier ? 1 : 0);
  return std::string(out.view());
}

Error decode_error(std::string_view record) {
  constexpr std::string_view what = "the record of a peer's error";
  Reader in(record, Errc::backend, what);
  const auto code = in.u8();
  if (code > static_cast<std::uint8_t>(Errc::backend))
    failf(Errc::backend, "{} has code {}; codes are 0 to {}", what, code,
          static_cast<int>(Errc::backend));
  Error::Where where;
  where.rank = in.i32();
  where.seq = in.i64();
  where.group = in.text();
  where.operation = in.text();
  const std::string message(in.text());
  where.missing = in.numbers<int>(in.u32());
  where.earlier = in.u8() != 0;
  in.end();
  return {static_cast<Errc>(code), message, where};
}

}  // namespace tutti::internal
