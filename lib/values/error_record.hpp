#pragma once

#include <string>
#include <string_view>

#include <tutti/error.hpp>

namespace tutti::internal {

/// An Error as ranks tell it one another through the store, and back.
std::string encode_error(const Error& error);
Error decode_error(std::string_view text);

}  // namespace tutti::internal
