#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "common/exit_code.hpp"
#include "common/option.hpp"
#include "report/output.hpp"

namespace tutti::tool {

/// `tutti compare OLD NEW`.
class CompareCommand {
 public:
  OptionList options();
  /// @throws Failure usage; with --run also that of run_rounds().
  Exit run(std::FILE* out, std::FILE* err) const;

 private:
  OutputTexts output_texts_{};
  std::string old_{};
  std::string new_{};
  bool run_ = false;
  std::string threshold_ = "5%";
  bool strict_ = false;
  std::string rounds_ = "auto";
  std::string max_total_ = "60s";
};

/// `tutti check RUN --require RULE`.
class CheckCommand {
 public:
  OptionList options();
  /// @throws Failure usage.
  Exit run(std::FILE* out) const;

 private:
  std::string files_{};
  std::vector<std::string> rules_{};
  std::string baseline_{};
  std::string tolerance_ = "5%";
};

}  // namespace tutti::tool
