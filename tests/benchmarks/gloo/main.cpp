// Compares Gloo's own calls with this library's on this machine; docs/gloo-benchmarks.md.

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
  times->add_flag("--plain", compare.plain, "also tutti without SCHED_BATCH and reno");
  times->add_option("--load", compare.load, "processes that compute meanwhile")
      ->check(CLI::Range(0, 16));
  times->add_option("--sizes", compare.sizes, "bytes")->delimiter(',');
  times->add_option("--operations", compare.operations)->delimiter(',');

  tutti::bench::DelayedAcksOptions acks;
  auto* delayed = app.add_subcommand("delayed-acks", "a sequence of calls that stalls bare Gloo");
  delayed->add_option("--calls", acks.calls, "of every size")->check(CLI::PositiveNumber);

  tutti::bench::RaggedOptions ragged;
  auto* rank = app.add_subcommand("ragged", "one rank on a slow network: ragged_network starts it");
  rank->add_option("--rank", ragged.rank)->required();
  rank->add_option("-n,--ranks", ragged.ranks)->check(CLI::Range(2, 64));
  rank->add_option("--store", ragged.store)->required();
  rank->add_option("--interface", ragged.interface)->required();
  rank->add_option("--bytes", ragged.bytes, "of all ranks");
  rank->add_option("--repeats", ragged.repeats)->check(CLI::PositiveNumber);

  CLI11_PARSE(app, argc, argv);
  try {
    if (*times) return tutti::bench::compare(compare);
    if (*rank) return tutti::bench::ragged(ragged);
    return tutti::bench::delayed_acks(acks);
  } catch (const std::exception& error) {
    std::cerr << "gloo_bench: " << error.what() << '\n';
    return 1;
  }
}
