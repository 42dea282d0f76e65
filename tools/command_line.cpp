#include "command_line.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <nlohmann/json.hpp>

namespace tutti::tool {
namespace {

/// The columns of the text beside an option.
constexpr std::size_t help_width = 64;

/// Help whose usage is that of a Subcommand; CLI11's says "[OPTIONS] [DIR]" where DIR is required.
class UsageFormatter : public CLI::Formatter {
 public:
  explicit UsageFormatter(std::string_view usage) : usage_(usage) {}

  std::string make_usage(const CLI::App*, std::string name) const override {
    return fmt::format("Usage: {} {}\n", name, usage_);
  }

 private:
  std::string usage_;
};

std::string wrap(std::string text) {
  for (std::size_t line = 0; text.size() - line > help_width;) {
    const std::size_t space = text.rfind(' ', line + help_width);
    if (space == std::string::npos || space <= line) break;
    text[space] = '\n';
    line = space + 1;
  }
  return text;
}

std::string unwrap(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string footer_of(const Subcommand& command) {
  std::string text = "Examples:\n";
  for (std::string_view rest = command.examples; !rest.empty();) {
    const std::size_t line = rest.find('\n') + 1;
    text += fmt::format("  {}", rest.substr(0, line));
    rest.remove_prefix(line);
  }
  return text;
}

/// The help of an option, and its default.
std::string help_of(const Option& option) {
  std::string default_text;
  if (const auto* reader = std::get_if<Reader>(&option.value))
    default_text = reader->default_text;
  else if (const auto* text = std::get_if<std::string*>(&option.value))
    default_text = **text;
  return default_text.empty() ? std::string(option.help)
                              : fmt::format("{} (default {})", option.help, default_text);
}

}  // namespace

CommandLine::CommandLine(const Subcommand& program)
    : app(std::string(program.help), std::string(program.name)) {
  commands_.emplace_back(&app, program);
  app.formatter(std::make_shared<UsageFormatter>(program.usage));
  app.footer(footer_of(program));
  app.set_help_flag("-h,--help", "print this help and exit");
}

CLI::App* CommandLine::add(CLI::App& parent, const Subcommand& command) {
  CLI::App* added = parent.add_subcommand(
      std::string(command.name.substr(command.name.rfind(' ') + 1)), std::string(command.help));
  added->formatter(std::make_shared<UsageFormatter>(command.usage));
  added->footer(footer_of(command));
  commands_.emplace_back(added, command);
  return added;
}

void CommandLine::define(CLI::App& command, const OptionList& options) {
  for (const Option& option : options) {
    const std::string names(option.names);
    const std::string help = wrap(help_of(option));
    std::vector<std::string_view> choices = option.choices;
    CLI::Option* added = std::visit(
        [&]<typename T>(const T& value) -> CLI::Option* {
          if constexpr (std::is_same_v<T, bool*>) {
            return command.add_flag(names, *value, help);
          } else if constexpr (std::is_pointer_v<T>) {
            return command.add_option(names, *value, help);
          } else {
            choices = value.choices;
            return command.add_option_function<std::string>(
                names,
                [read = value.read, name = names.substr(names.rfind(',') + 1)](
                    const std::string& text) { read(name, text); },
                help);
          }
        },
        option.value);
    if (!option.type.empty() || added->get_positional()) added->type_name(std::string(option.type));
    if (!option.group.empty()) added->group(std::string(option.group));
    const bool list = std::holds_alternative<std::vector<std::string>*>(option.value);
    if (list && names.starts_with("-"))
      added->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    choices_[added] = std::move(choices);
  }
}

std::string CommandLine::description() const {
  auto all = nlohmann::ordered_json::array();
  for (const auto& [command, described] : commands_) {
    auto options = nlohmann::ordered_json::array();
    for (const CLI::Option* option : command->get_options()) {
      const auto choices = choices_.find(option);
      options.push_back(
          {{"short", option->get_snames()},
           {"long", option->get_lnames()},
           {"name", option->get_positional() ? option->get_name() : ""},
           {"help", unwrap(option->get_description())},
           {"type", option->get_items_expected_max() == 0 ? "" : option->get_type_name()},
           {"group", option->get_group()},
           {"repeatable", option->get_items_expected_max() > 1},
           {"choices",
            choices == choices_.end() ? std::vector<std::string_view>{} : choices->second}});
    }
    all.push_back({{"name", described.name},
                   {"usage", described.usage},
                   {"help", described.help},
                   {"examples", described.examples},
                   {"in_tutti_report", described.in_tutti_report},
                   {"options", options}});
  }
  return all.dump(1) + "\n";
}

std::string hint(const CLI::App& app, std::string_view unknown) {
  const auto letters = [](std::string_view name) {
    std::string bare(name);
    std::erase_if(bare, [](char letter) { return letter == '-' || letter == '_'; });
    return bare;
  };
  const auto wanted = letters(unknown.substr(0, unknown.find('=')));
  if (wanted == "minbytes" || wanted == "maxbytes")  // Of nccl-tests.
    return "; did you mean --sizes MIN:MAX, such as 8:1G?";
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames())
      if (letters(name) == wanted) return fmt::format("; did you mean --{}?", name);
  return {};
}

}  // namespace tutti::tool
