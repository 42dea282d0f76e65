#pragma once

#include <string>
#include <vector>

#include "bench/options.hpp"
#include "common/option.hpp"

namespace tutti::tool {

/// The options of `tutti bench` as text; parse() interprets them.
class BenchCommand {
 public:
  /// Returns the options for CLI11, which writes their texts to this object.
  OptionList options();

  /// @throws Failure usage for an invalid value.
  BenchOptions parse(const std::vector<std::string>& argv) const;

  bool help_sizes() const noexcept { return help_sizes_; }

 private:
  LaunchTexts launch_texts_{};
  OutputTexts output_texts_{};
  std::vector<std::string> collectives_{};
  std::string sizes_{};
  std::string dtypes_{};
  std::string ops_{};
  std::string root_{};
  std::string place_{};
  std::string counts_{};
  std::string mode_ = "throughput";
  std::string min_time_ = "0.5s";
  std::string iters_ = "auto";
  std::string warmup_ = "auto";
  std::string max_total_ = "10m";
  std::string order_ = "size";
  bool cold_ = false;
  std::string aggregate_ = "1";
  bool overlap_ = false;
  bool links_ = false;
  std::string rank_agg_ = "max";
  std::string percentiles_{};
  std::string check_ = "first";
  std::string seed_ = "0";
  std::string samples_ = "none";
  bool quiet_ = false;
  bool verbose_ = false;
  bool help_sizes_ = false;
};

/// The meaning of S and the bus bandwidth factor of every collective.
std::string sizes_help();

}  // namespace tutti::tool
