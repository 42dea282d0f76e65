#pragma once

#include <cstdio>
#include <string>

#include "bench/options.hpp"
#include "common/exit_code.hpp"
#include "common/option.hpp"

namespace tutti::tool {

/// The options of `tutti bench`, which set `to`; check_bench() completes it.
OptionList bench_options(BenchOptions& to);
/// Interprets options that depend on each other. @throws Failure usage.
void check_bench(BenchOptions& options);
/// The meaning of S and the bus bandwidth factor of every collective.
std::string sizes_help();

/// A run in every format but the table, which is printed during the run. Both arguments outlive it.
Report bench_report(const BenchRecord& record, const BenchOptions& options);
/// The JSON Schema of the output of `tutti bench -f json`.
std::string bench_schema();

/// What must be equal on all ranks: the plan, and the options that decide on calls.
std::string fingerprint(const Plan& plan, const BenchOptions& options, int ranks);

/// Runs `tutti bench`. Writes results to `out`, progress and errors to `err`. @throws Failure for
/// errors before the first measurement.
Exit run_bench(const BenchOptions& options, std::FILE* out, std::FILE* err);

}  // namespace tutti::tool
