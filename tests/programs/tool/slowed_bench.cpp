// `tutti bench` over a decorator that makes calls longer: slowed_bench BYTES:US[,BYTES:US...]
// [options of bench] adds so many microseconds to calls whose input has so many bytes.

#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include <tutti/backend/forwarding_backend.hpp>

#include "bench/bench.hpp"
#include "bench/command.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

using Microseconds = std::chrono::duration<double, std::micro>;
using Additions = std::map<std::size_t, Microseconds>;

/// Spins after each call, always for the same time. (A part of a call's own time would contain the
/// wait for peers that spin, and grow.)
class Slowed final : public ForwardingBackend {
 public:
  Slowed(std::unique_ptr<Backend> inner, const Additions& additions)
      : ForwardingBackend(std::move(inner)), additions_(additions) {}

  Work launch(std::span<const Op> ops, const Call& call) override {
    using Clock = std::chrono::steady_clock;
    inner().launch(ops, call).wait();
    const auto end = Clock::now();
    if (const auto more = additions_.find(ops.front().in.bytes()); more != additions_.end())
      while (Clock::now() - end < more->second) {
      }
    return {};
  }

 private:
  Additions additions_;
};

/// Fills in the options of bench, without CLI11: "--name value", flags and collectives.
void fill(const OptionList& options, std::span<char* const> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string argument = arguments[i];
    const std::string name = argument.starts_with('-') ? argument : "collectives";
    bool found = false;
    for (const Option& option : options) {
      if (fmt::format(",{},", option.names).find(fmt::format(",{},", name)) == std::string::npos)
        continue;
      found = true;
      if (bool* const* flag = std::get_if<bool*>(&option.value)) **flag = true;
      if (auto* const* text = std::get_if<std::string*>(&option.value)) **text = arguments[++i];
      if (auto* const* list = std::get_if<std::vector<std::string>*>(&option.value))
        (*list)->emplace_back(name == argument ? arguments[++i] : argument.c_str());
    }
    if (!found) refuse("slowed_bench: '{}' is no option of bench", argument);
  }
}

Exit slowed_bench(std::span<char* const> arguments) {
  if (arguments.size() < 2) refuse("slowed_bench: expected BYTES:US[,...] [options of bench]");
  Additions additions;
  for (const std::string_view item : split_list("slowed_bench", arguments[1])) {
    const std::string text(item);
    std::size_t end = 0;
    const std::size_t bytes = std::stoul(text, &end);
    additions[bytes] = Microseconds(std::stod(text.substr(end + 1)));
  }
  BenchCommand command;
  fill(command.options(), arguments.subspan(2));
  BenchOptions options = command.parse({arguments.begin(), arguments.end()});
  options.decorate = [additions](int, std::unique_ptr<Backend> inner) {
    return std::make_unique<Slowed>(std::move(inner), additions);
  };
  return run_bench(options, stdout, stderr);
}

}  // namespace
}  // namespace tutti::tool

int main(int argc, char** argv) {
  using namespace tutti::tool;
  try {
    return static_cast<int>(slowed_bench({argv, static_cast<std::size_t>(argc)}));
  } catch (const Failure& failure) {
    fmt::print(stderr, "error: {}\n", failure.what());
    return static_cast<int>(failure.code());
  }
}
