// Gloo's own calls beside this library's, on this machine: docs/gloo-benchmarks.md.

#include <exception>
#include <iostream>

#include <CLI/CLI.hpp>

#include "commands.hpp"

int main(int argc, char** argv) {
  CLI::App app("Gloo's own calls beside tutti's backend gloo, as processes of this machine");
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();

  tutti::bench::CompareOptions compare;
  auto* times = app.add_subcommand("compare", "times, interleaved");
  times->add_option("-n,--ranks", compare.ranks)->check(CLI::Range(2, 16));
  times->add_option("--rounds", compare.rounds)->check(CLI::PositiveNumber);
  times->add_option("--calls", compare.calls, "per round")->check(CLI::PositiveNumber);
  times->add_option("--sizes", compare.sizes, "bytes")->delimiter(',');
  times->add_option("--operations", compare.operations)->delimiter(',');

  tutti::bench::DelayedAcksOptions acks;
  auto* delayed = app.add_subcommand("delayed-acks", "a sequence of calls that stalls bare Gloo");
  delayed->add_option("--calls", acks.calls, "of every size")->check(CLI::PositiveNumber);

  CLI11_PARSE(app, argc, argv);
  try {
    return *times ? tutti::bench::compare(compare) : tutti::bench::delayed_acks(acks);
  } catch (const std::exception& error) {
    std::cerr << "gloo_bench: " << error.what() << '\n';
    return 1;
  }
}
