#pragma once

#include <string>
#include <string_view>

#include <tutti/error.hpp>

namespace tutti::internal {

/// Encodes an Error for other ranks, which read it from the store.
std::string encode_error(const Error& error);
/// Decodes a record of encode_error(). @throws Error backend for other bytes.
Error decode_error(std::string_view record);

}  // namespace tutti::internal
