#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "bench/options.hpp"
#include "bench/progress.hpp"
#include "bench/record.hpp"
#include "bench/table.hpp"

namespace tutti::tool {

/// Collects and shows results on rank 0 during the run.
class Recorder {
 public:
  /// The arguments outlive it.
  Recorder(const BenchOptions& options, const Plan& plan, BenchRecord& record, std::FILE* out,
           std::FILE* err);

  void begin(World world);
  void note(const std::string& text);
  void begin_sweep(const Key& key);
  void before_row(const Block& block, std::int64_t bytes);
  void row(Row row);
  void end_sweep();
  /// The run ends before the next size. @param part  of the plan, that the backend supports.
  void end_early(bool interrupted, std::int64_t measured, const Plan& part);
  const World& world() const noexcept { return record_.world; }
  void links(Links measured);
  void end();

 private:
  const BenchOptions& options_;
  const Plan& plan_;
  BenchRecord& record_;
  std::FILE* err_;
  Progress progress_;
  std::optional<Table> table_{};
  bool begun_ = false;
  std::size_t first_of_sweep_ = 0;
};

}  // namespace tutti::tool
