#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "loss/loss.hpp"

namespace tutti::tool {

/// The options of `tutti loss`, as text: CLI11 fills them in, parse() gives them a meaning.
class LossCommand {
 public:
  /// Adds the options to `app`.
  void define(CLI::App& app);

  /// @throws Failure usage for a value that makes no sense, or an option that no chosen loss uses.
  LossOptions parse(const std::vector<std::string>& argv) const;

 private:
  LossProblem parse_problem() const;

  // Empty: not given.
  std::string losses_{};
  std::string ranks_{};
  std::string backend_ = "auto";
  std::string store_{};
  std::string timeout_ = "60s";
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
  std::string format_ = "table";
};

}  // namespace tutti::tool
