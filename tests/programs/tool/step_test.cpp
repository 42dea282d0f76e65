#include "step/step.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "bench_runs.hpp"
#include "common/compute_loop.hpp"
#include "step/models.hpp"

namespace tutti::tool {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// The models.

TEST(StepModels, ResNet50HasThePublishedNumberOfParameters) {
  const Model model = parse_model("resnet50", DType::f32);
  EXPECT_EQ(model.elements(), 25'557'032);
  std::set<std::string> names;
  for (const Model::Parameter& parameter : model.parameters) names.insert(parameter.name);
  EXPECT_EQ(names.size(), 161U);
  EXPECT_EQ(model.parameters.size(), 161U);
}

TEST(StepModels, AUniformModelHasTheSizeInBytesOrElements) {
  const Model bytes = parse_model("uniform:16x1M", DType::f64);
  EXPECT_EQ(bytes.parameters.size(), 16U);
  EXPECT_EQ(bytes.elements(), 16 << 17);
  EXPECT_EQ(parse_model("uniform:3x100e", DType::bf16).elements(), 300);
}

TEST(StepModels, WhatIsNoModelIsRefused) {
  for (const char* text : {"", "resnet", "uniform", "uniform:", "uniform:16", "uniform:0x1M",
                           "uniform:16x", "uniform:16x1M,2M", "uniform:16x1M:2M", "uniform:16x6",
                           "uniform:100000x9000000000000000000e"}) {
    try {
      (void)parse_model(text, DType::f32);
      ADD_FAILURE() << text << " is a model";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.code(), Exit::usage) << text;
    }
  }
}

// The compute loop.

TEST(ComputeLoop, TakesTheProcessorTimeThatWasAsked) {
  ComputeLoop loop(50ms);
  std::chrono::nanoseconds fastest = 1h;
  for (int i = 0; i < 3; ++i) {
    const auto start = thread_processor_time();
    loop.run(loop.rounds());
    fastest = std::min(fastest, thread_processor_time() - start);
  }
  // Wide, because the processor's clock may change in between.
  EXPECT_GT(fastest, 25ms);
  EXPECT_LT(fastest, 100ms);
}

TEST(ComputeLoop, OfNoTimeDoesNothing) {
  EXPECT_EQ(ComputeLoop(0s).rounds(), 0);
}

// Whole runs.

StepOptions two_ranks() {
  StepOptions options;
  options.model = parse_model("uniform:4x4K", DType::f32);
  options.bucket_bytes = {4096};
  options.compute = std::chrono::nanoseconds(0);
  options.rounds = 3;
  options.ranks = 2;
  options.backend = "local";
  options.format = Format::json;
  return options;
}

/// The reductions of gradients of rank 1 go through `change`.
StepOptions with_change(StepOptions options, const Changed::Change& change) {
  options.decorate = [change](int rank, std::unique_ptr<Backend> inner) {
    if (rank != 1) return inner;
    return std::unique_ptr<Backend>(std::make_unique<Changed>(
        std::move(inner),
        [change](std::span<const Op> ops, const Call& call, const Changed::Real& real) {
          const Op& op = ops.front();
          return op.kind == Operation::all_reduce && op.out.dtype == DType::f32
                     ? change(ops, call, real)
                     : real(ops, call);
        }));
  };
  return options;
}

/// Adds 1 to an element of the result of the calls with this name, from call `first` on.
Changed::Change adds_one(std::string name, std::size_t index, int first = 0) {
  auto calls = std::make_shared<int>(0);
  return [=](std::span<const Op> ops, const Call& call, const Changed::Real& real) {
    if (call.name != name || (*calls)++ < first) return real(ops, call);
    Work work = real(ops, call);
    work.wait();
    static_cast<float*>(ops.front().out.data)[index] += 1;
    return work;
  };
}

TEST(Step, WhatIsRightEndsWithZero) {
  for (const bool as_view : {false, true}) {
    StepOptions options = two_ranks();
    options.as_view = as_view;
    const Result r = run(run_step, options);
    EXPECT_EQ(r.code, Exit::ok) << r.err;
    EXPECT_EQ(r.err, "");
    EXPECT_EQ(r.row().at("wrong"), 0);
    EXPECT_TRUE(r.row().at("first_wrong").is_null());
    EXPECT_EQ(r.row().at("buckets"), 4);
    EXPECT_EQ(r.row().at("bytes"), 4 * 4096);
    EXPECT_EQ(r.row().at("last_bucket_bytes"), 4096);
    EXPECT_TRUE(r.row().at("overlap_us").is_null());
  }
}

TEST(Step, AWrongElementIsCountedAndNamed) {
  // The first bucket has the last parameter. Four steps are checked: two before, two after.
  const Result r = run(run_step, with_change(two_ranks(), adds_one("ddp bucket 0", 5)));
  EXPECT_EQ(r.code, Exit::wrong_data);
  EXPECT_EQ(r.json.at("status"), "wrong_data");
  EXPECT_EQ(r.row().at("wrong"), 4);
  const Json& first = r.row().at("first_wrong");
  EXPECT_EQ(first.at("rank"), 1);
  EXPECT_EQ(first.at("array"), "3");
  EXPECT_EQ(first.at("index"), 5);
  EXPECT_EQ(std::stod(first.at("got").get<std::string>()),
            std::stod(first.at("expected").get<std::string>()) + 1);
  EXPECT_TRUE(contains(r.err,
                       "error: step uniform:4x4K, bucket 4 KiB: 4 wrong elements, first: "
                       "rank 1 3[5] expected "))
      << r.err;
}

TEST(Step, TheStepsAfterTheMeasurementAreCheckedToo) {
  // Two checked steps, two of the warm-up and three of the measurement are right.
  const Result r = run(run_step, with_change(two_ranks(), adds_one("ddp bucket 2", 0, 7)));
  EXPECT_EQ(r.code, Exit::wrong_data);
  EXPECT_EQ(r.row().at("wrong"), 2);
}

TEST(Step, OneWrongStepInTheMiddleIsFoundWhereAllAreChecked) {
  StepOptions options = two_ranks();
  options.check = Check::all;
  auto calls = std::make_shared<int>(0);
  const Result r =
      run(run_step, with_change(options, [calls](auto ops, const Call& call, const auto& real) {
            Work work = real(ops, call);
            if (call.name != "ddp bucket 1" || (*calls)++ != 5) return work;
            work.wait();
            static_cast<float*>(ops.front().out.data)[0] += 1;
            return work;
          }));
  EXPECT_EQ(r.code, Exit::wrong_data);
  EXPECT_EQ(r.row().at("wrong"), 1);
}

TEST(Step, WithoutAnyCheckTheNumberOfWrongElementsIsUnknown) {
  StepOptions options = with_change(two_ranks(), adds_one("ddp bucket 0", 5));
  options.check = Check::none;
  const Result r = run(run_step, options);
  EXPECT_EQ(r.code, Exit::ok) << r.err;
  EXPECT_TRUE(r.row().at("wrong").is_null());
}

TEST(Step, ASingleCallPerGradientIsCheckedToo) {
  StepOptions options = two_ranks();
  options.calls = true;
  const Result r = run(run_step, with_change(options, adds_one("", 0)));
  EXPECT_EQ(r.code, Exit::wrong_data);
  EXPECT_EQ(r.row().at("wrong"), 2 * 4);  // In both checks, in each of the 4 gradients.
}

TEST(Step, ACallThatFailsEndsTheRunOfAllRanks) {
  const Result r =
      run(run_step, with_change(two_ranks(), [](auto, const Call&, const auto&) -> Work {
            throw Error(Errc::backend, "out of wire");
          }));
  EXPECT_EQ(r.code, Exit::internal);
  EXPECT_EQ(r.json.at("status"), "error");
  EXPECT_TRUE(contains(r.err, "out of wire")) << r.err;
  EXPECT_TRUE(r.json.at("results").empty());
}

/// With overlap three quarters of the compute loop are between the launches of the first and the
/// last bucket.
TEST(Step, OverlapLaunchesBucketsWithinTheComputeLoop) {
  StepOptions options = two_ranks();
  options.warmup = 0;
  options.compute = 40ms;
  Clock::time_point first;
  std::vector<std::chrono::nanoseconds> spans;
  const Result r =
      run(run_step, with_change(options, [&](auto ops, const Call& call, const auto& real) {
            if (call.name == "ddp bucket 0") first = Clock::now();
            if (call.name == "ddp bucket 3") spans.push_back(Clock::now() - first);
            return real(ops, call);
          }));
  EXPECT_EQ(r.code, Exit::ok) << r.err;
  // Two checked steps; in each of three rounds one without compute, one with overlap and one
  // without; two checked steps.
  ASSERT_EQ(spans.size(), 2U + 3 * 3 + 2);
  EXPECT_GT(std::min({spans[3], spans[6], spans[9]}), 20ms);
  EXPECT_LT(std::min({spans[4], spans[7], spans[10]}), 20ms);
}

}  // namespace
}  // namespace tutti::tool
