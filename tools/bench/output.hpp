#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "bench/bench.hpp"
#include "bench/record.hpp"

namespace tutti::tool {

/// Which format the name of a file asks for, by its ending; empty for an unknown one.
std::optional<Format> format_of(std::string_view path) noexcept;

/// A whole run in one format; nothing for the table, which is printed while the run goes on.
std::string render(Format format, const BenchRecord& record, const BenchOptions& options);

}  // namespace tutti::tool
