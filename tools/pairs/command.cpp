#include "pairs/command.hpp"

#include "common/duration.hpp"
#include "common/text.hpp"

namespace tutti::tool {

OptionList PairsCommand::options() {
  OptionList list;
  launch_texts_.add_to(list);
  const OptionList own{
      {"--passes", &passes_, "over all pairs; each link has a median of each (3)", "N", "Timing"},
      {"--min-time", &each_, "of each measurement of a link in a pass (5ms)", "TIME", "Timing"},
      {"--at-once", &at_once_, "measure all pairs of a round at the same time", "", "Timing"}};
  list.insert(list.end(), own.begin(), own.end());
  output_texts_.add_to(list);
  return list;
}

PairsOptions PairsCommand::parse(const std::vector<std::string>& argv) const {
  PairsOptions options;
  launch_texts_.parse(options);
  output_texts_.parse(options, argv);
  options.timing.passes = static_cast<int>(parse_integer("--passes", passes_, 1, 1000));
  options.timing.each = parse_duration("--min-time", each_);
  options.timing.at_once = at_once_;
  return options;
}

}  // namespace tutti::tool
