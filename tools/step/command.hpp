#pragma once

#include <string>
#include <vector>

#include "common/option.hpp"
#include "step/options.hpp"

namespace tutti::tool {

/// The options of `tutti bench step` as text; parse() interprets them.
class StepCommand {
 public:
  /// Options that write to this object.
  OptionList options();

  /// @throws Failure usage for an invalid value.
  StepOptions parse(const std::vector<std::string>& argv) const;

 private:
  LaunchTexts launch_texts_{};
  OutputTexts output_texts_{};
  std::string model_ = "resnet50";
  std::string dtype_ = "f32";
  std::string buckets_ = "1M,5M,25M";
  std::string hook_ = "all_reduce";
  bool as_view_ = false;
  std::string compute_ = "100ms";
  bool calls_ = false;
  std::string rounds_ = "auto";
  std::string warmup_ = "2";
  std::string min_time_ = "1s";
  std::string check_ = "first";
  std::string seed_ = "0";
};

}  // namespace tutti::tool
