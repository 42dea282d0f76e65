#include "report/saved_run.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/output.hpp"
#include "common/exit_code.hpp"
#include "report/json.hpp"

namespace tutti::tool {
namespace {

using Json = nlohmann::ordered_json;

/// A record in which no field has its default.
BenchRecord a_record() {
  BenchRecord record;
  record.status = Status::wrong_data;
  record.started = std::chrono::system_clock::from_time_t(1795000000);
  record.duration_s = 1.5;
  record.argv = {"tutti", "bench"};
  record.env = {{"TUTTI_BACKEND", "shm"}};
  record.backend = {"shm", "1.2", "asked for", "tcp/lo"};
  record.world = {2,    1, true,
                  true, 3, {{0, "vm", 7, "cpu", "0-1", "a cpu"}, {1, "vm", 8, "cuda:0", "2", "b"}}};
  record.notes = {"a note"};
  Row row;
  row.key = {"reduce", DType::f32, ReduceOp::Kind::max, PlaceMode::in, 1, "linear"};
  row.bytes = 1024;
  row.count = 256;
  row.ranks = 2;
  row.counts = {1, 255};
  row.time_us = {3, 2, 2.5, 1, 4, 0.5};
  row.percentiles_us = {{50, 2}, {90, 3}, {99, 4}, {99.9, 4.5}};
  row.rank_mean_us = {2, 3};
  row.slowest_rank = 1;
  row.algbw = 0.1;
  row.busbw = 0.2;
  row.wrong = 3;
  row.block_p50_us = {1, 4};
  row.samples_us = {1, 2, 4};
  row.flags = {Flag::noisy};
  record.rows.push_back(row);
  Row barrier;
  barrier.key.coll = "barrier";
  barrier.time_us.n = 1;
  record.rows.push_back(barrier);
  return record;
}

std::string text_of(const BenchRecord& record) {
  return to_json(bench_report(record, BenchOptions()).run());
}

TEST(SavedRun, HasWhatTheRecordHas) {
  const BenchRecord record = a_record();
  const SavedRun run = parse_saved_run(text_of(record), "r.json");
  EXPECT_EQ(run.file, "r.json");
  EXPECT_FALSE(run.version.empty());
  EXPECT_FALSE(run.git.empty());
  EXPECT_FALSE(run.build.empty());
  EXPECT_EQ(run.status, record.status);
  EXPECT_EQ(run.started, record.started);
  EXPECT_EQ(run.duration_s, record.duration_s);
  EXPECT_EQ(run.argv, record.argv);
  EXPECT_EQ(run.env, record.env);
  EXPECT_EQ(run.notes, record.notes);
  EXPECT_EQ(run.config.at("mode"), "throughput");
  EXPECT_EQ(run.config.at("min_time_s"), "0.5");
  EXPECT_EQ(run.backend.name, "shm");
  EXPECT_EQ(run.backend.version, "1.2");
  EXPECT_EQ(run.backend.chosen_because, "asked for");
  EXPECT_EQ(run.backend.transport, "tcp/lo");
  EXPECT_EQ(run.world.size, 2);
  EXPECT_EQ(run.world.hosts, 1);
  EXPECT_EQ(run.world.cpus, 3);
  EXPECT_TRUE(run.world.threads);
  EXPECT_TRUE(run.world.oversubscribed);
  ASSERT_EQ(run.world.ranks.size(), 2U);
  EXPECT_EQ(run.world.ranks[1].pid, 8);
  EXPECT_EQ(run.world.ranks[1].device, "cuda:0");
  EXPECT_EQ(run.world.ranks[1].cpuset, "2");
  EXPECT_EQ(run.world.ranks[1].model, "b");

  ASSERT_EQ(run.rows.size(), 2U);
  const SavedRow& row = run.rows[0];
  const Row& before = record.rows[0];
  EXPECT_EQ(row.coll, "reduce");
  EXPECT_EQ(row.dtype, "f32");
  EXPECT_EQ(row.op, "max");
  EXPECT_EQ(row.place, "in");
  EXPECT_EQ(row.root, 1);
  EXPECT_EQ(row.layout, "linear");
  EXPECT_EQ(row.counts, before.counts);
  EXPECT_EQ(row.bytes, 1024);
  EXPECT_EQ(row.count, 256);
  EXPECT_EQ(row.ranks, 2);
  EXPECT_EQ(row.time_us.n, 3);
  EXPECT_EQ(row.time_us.p50, 2);
  EXPECT_EQ(row.time_us.mean, 2.5);
  EXPECT_EQ(row.time_us.min, 1);
  EXPECT_EQ(row.time_us.max, 4);
  EXPECT_EQ(row.time_us.stdev, 0.5);
  EXPECT_EQ(row.percentiles_us, before.percentiles_us);
  EXPECT_EQ(row.rank_mean_us, before.rank_mean_us);
  EXPECT_EQ(row.slowest_rank, 1);
  EXPECT_EQ(row.algbw, 0.1);
  EXPECT_EQ(row.busbw, 0.2);
  EXPECT_EQ(row.wrong, 3);
  EXPECT_EQ(row.block_p50_us, before.block_p50_us);
  EXPECT_EQ(row.samples_us, before.samples_us);
  EXPECT_EQ(row.flags, std::vector<std::string>{"noisy"});
  EXPECT_EQ(title(row), "reduce f32 max in-place root 1 linear");
  EXPECT_EQ(size_text(row), "1 KiB");

  const SavedRow& barrier = run.rows[1];
  EXPECT_TRUE(barrier.dtype.empty() && barrier.op.empty() && barrier.place.empty());
  EXPECT_FALSE(barrier.root || barrier.algbw || barrier.busbw || barrier.wrong);
  EXPECT_EQ(title(barrier), "barrier");
  EXPECT_EQ(size_text(barrier), "-");
}

TEST(SavedRun, IgnoresFieldsOfLaterReleasesAndMissesOptionalOnes) {
  Json json = Json::parse(text_of(a_record()));
  json["later"] = {1, 2};
  json["results"][0]["later"] = true;
  json["results"][0]["time_us"]["per_call"] = "x";
  json["results"][0].erase("block_p50_us");
  json.erase("fit");
  const SavedRun run = parse_saved_run(json.dump(), "r.json");
  EXPECT_TRUE(run.rows[0].block_p50_us.empty());
}

/// Parses the record with one field replaced and returns the error.
std::string error_with(const std::string& path, const Json& value) {
  Json json = Json::parse(text_of(a_record()));
  const Json::json_pointer at(path);
  if (value.is_discarded())
    json.at(at.parent_pointer()).erase(at.back());
  else
    json[at] = value;
  try {
    (void)parse_saved_run(json.dump(), "r.json");
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), Exit::usage);
    return failure.what();
  }
  return "no error";
}

TEST(SavedRun, AMalformedFileIsRefusedWithTheFieldAndWhatWasExpected) {
  struct Case {
    std::string path;
    Json value;
    std::vector<std::string> words;
  };
  const Json gone = Json::parse("", nullptr, false);
  const std::vector<Case> cases{
      {"/schema_version", 2, {"schema_version: expected 1, found 2"}},
      {"/schema_version", "1", {"schema_version: expected a whole number"}},
      {"/tool", gone, {"the whole: expected an object with the field 'tool'"}},
      {"/status", "fine", {"status: expected one of: ok wrong_data", "found \"fine\""}},
      {"/started", "yesterday", {"started: expected a date such as"}},
      {"/world/ranks", 3, {"world.ranks: expected a list, found 3"}},
      {"/world/ranks/1/host", 3, {"world.ranks[1].host: expected a string, found 3"}},
      {"/world/threads", 1, {"world.threads: expected true or false"}},
      {"/env/TUTTI_BACKEND", 5, {"env.TUTTI_BACKEND: expected a string"}},
      {"/results", Json::object(), {"results: expected a list, found {}"}},
      {"/results/0", 5, {"results[0]: expected an object, found 5"}},
      {"/results/0/coll", gone, {"results[0]: expected an object with the field 'coll'"}},
      {"/results/0/bytes", -8, {"results[0].bytes: expected a whole number from 0", "found -8"}},
      {"/results/0/bytes", 8.5, {"results[0].bytes: expected a whole number"}},
      {"/results/0/ranks",
       5000000000,
       {"results[0].ranks: expected a whole number from 0 to 2147483647"}},
      {"/results/0/time_us/n", 0, {"results[0].time_us.n: expected at least 1"}},
      {"/results/0/time_us/p50", gone, {"results[0].time_us: expected", "'p50'"}},
      {"/results/0/time_us/p99",
       nullptr,
       {"results[0].time_us.p99: expected a number, found null"}},
      {"/results/0/time_us/mean", -1, {"results[0].time_us.mean: expected a time of at least 0"}},
      {"/results/0/samples_us/2",
       "x",
       {"results[0].samples_us[2]: expected a number, found \"x\""}}};
  for (const Case& each : cases) {
    const std::string error = error_with(each.path, each.value);
    EXPECT_EQ(error.rfind("r.json: ", 0), 0U) << error;
    for (const std::string& word : each.words)
      EXPECT_NE(error.find(word), std::string::npos) << each.path << ": " << error;
  }
}

TEST(SavedRun, WhatIsNoJsonOrNoFileIsRefused) {
  for (const std::string text : {"", "{", "[1]", "{\"schema_version\": 1e999}"})
    EXPECT_THROW((void)parse_saved_run(text, "r.json"), Failure) << text;
  const std::string deep = std::string(300'000, '[') + std::string(300'000, ']');
  EXPECT_THROW((void)parse_saved_run(deep, "r.json"), Failure);
  EXPECT_THROW((void)read_saved_run("/nonexistent/r.json"), Failure);
  EXPECT_THROW((void)read_saved_run("/"), Failure);
}

}  // namespace
}  // namespace tutti::tool
