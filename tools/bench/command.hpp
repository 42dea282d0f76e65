#pragma once

#include <string>

#include "bench/options.hpp"
#include "common/option.hpp"

namespace tutti::tool {

/// The options of `tutti bench`, which set `to`; check_bench() completes it.
OptionList bench_options(BenchOptions& to);

/// Interprets options that depend on each other. @throws Failure usage.
void check_bench(BenchOptions& options);

/// The meaning of S and the bus bandwidth factor of every collective.
std::string sizes_help();

}  // namespace tutti::tool
