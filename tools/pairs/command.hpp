#pragma once

#include <string>
#include <vector>

#include "common/option.hpp"
#include "pairs/options.hpp"
#include "report/output.hpp"
#include "run/source.hpp"

namespace tutti::tool {

/// The options of `tutti pairs` as text; parse() interprets them.
class PairsCommand {
 public:
  /// Returns the options for CLI11, which writes their texts to this object.
  OptionList options();

  /// @throws Failure usage.
  PairsOptions parse(const std::vector<std::string>& argv) const;

 private:
  LaunchTexts launch_texts_{};
  OutputTexts output_texts_{.svg = true};
  std::string passes_ = "3";
  std::string each_ = "5ms";
  bool at_once_ = false;
};

}  // namespace tutti::tool
