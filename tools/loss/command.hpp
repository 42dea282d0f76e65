#pragma once

#include <string>
#include <vector>

#include "common/option.hpp"
#include "loss/options.hpp"

namespace tutti::tool {

/// The options of `tutti loss` as text; parse() interprets them.
class LossCommand {
 public:
  /// Returns the options for CLI11, which writes their texts to this object.
  OptionList options();

  /// @throws Failure usage for an invalid value, or an option that no chosen loss uses.
  LossOptions parse(const std::vector<std::string>& argv) const;

 private:
  LossProblem parse_problem() const;

  RankTexts rank_texts_{};
  OutputTexts output_texts_{};
  // Empty: not given.
  std::string losses_{};
  std::string rows_ = "10000";
  std::string classes_ = "1";
  std::string positive_rate_ = "0.05";
  std::string ignore_rate_{};
  std::string dtype_ = "f32";
  std::string seed_ = "0";
  std::string temperature_{};
  std::string quantile_{};
  std::string budget_{};
  std::string surrogate_{};
  std::string gamma_{};
  std::string queue_{};
  std::string threads_{};
  std::string split_ = "uneven";
  std::string calls_{};
  std::string rounds_ = "5";
  std::string tolerance_{};
};

}  // namespace tutti::tool
