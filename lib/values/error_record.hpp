#pragma once

#include <string>
#include <string_view>

#include <tutti/error.hpp>

namespace tutti::internal {

/// An Error as ranks tell it one another through the store, and back.
std::string encode_error(const Error& error);
/// @throws Error backend for bytes that are no such record.
Error decode_error(std::string_view record);

}  // namespace tutti::internal
