#include <atomic>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "backends/nccl/double/double.hpp"
#include "bench_runs.hpp"
#include "step/step.hpp"

// `tutti bench` with arrays on devices, over the double of NCCL and CUDA. The double is measured,
// so times are ignored.

namespace tutti::tool {
namespace {

namespace test_double = tutti::test::nccl_double;

BenchOptions on_devices(int ranks, const char* sizes) {
  BenchOptions options;
  options.ranks = ranks;
  options.backend = "nccl_double";
  options.device = DeviceRequest{DeviceType::cuda, {}};
  options.format = Format::json;
  options.request.collectives.values = {find_collective("all_reduce")};
  options.request.dtypes.values = {DType::f32};
  options.request.ops.values = {ReduceOp::Kind::sum};
  options.request.places.values = {PlaceMode::out};
  options.request.sizes = parse_sizes(sizes);
  options.timing.iters = 3;
  options.timing.warmup = 1;
  return options;
}

/// After the call, in order on its stream: out[index] = 0.25.
Changed::Change overwrites(std::int64_t index) {
  return [index](std::span<const Op> ops, const Call& call, const Changed::Real& real) {
    Work work = real(ops, call);
    work.block_stream(call.stream);
    test_double::apis().cuda->set_device(1);  // The device of the default stream.
    test_double::fill(static_cast<cudaStream_t>(call.stream.handle),
                      static_cast<float*>(ops.front().out.data) + index, 1, 0.25F);
    return work;
  };
}

TEST(DeviceBench, EveryCollectiveOnFourDevicesHasNothingWrong) {
  BenchOptions options = on_devices(4, "64,40000");
  Choice<const Collective*>& wanted = options.request.collectives;
  wanted.all = true;
  wanted.values.clear();
  for (const Collective& collective : collectives()) wanted.values.push_back(&collective);
  options.request.places = {{PlaceMode::out, PlaceMode::in}, true, true};
  const Result r = run(options);
  EXPECT_EQ(r.code, Exit::ok) << r.err;
  std::set<std::string> measured;
  for (const Json& row : r.json.at("results")) {
    if (row.at("dtype").is_null()) {
      EXPECT_TRUE(row.at("coll") == "barrier" || row.at("calls_per_sample") == 1) << row;
    } else {
      EXPECT_EQ(row.at("wrong"), 0) << row;
    }
    measured.insert(row.at("coll").get<std::string>());
  }
  // Builds without nvcc have no scans, and notes say so.
  for (const Collective& collective : collectives()) {
    const std::string name(collective.name);
    const bool unsupported = contains(r.err, "does not support " + name);
    EXPECT_NE(measured.contains(name), unsupported) << name << ": " << r.err;
    EXPECT_TRUE(!unsupported || name == "scan" || name == "exclusive_scan") << name;
  }
  std::vector<std::string> devices;
  for (const Json& rank : r.json.at("world").at("ranks")) devices.push_back(rank.at("device"));
  EXPECT_EQ(devices, (std::vector<std::string>{"cuda:0", "cuda:1", "cuda:2", "cuda:3"}));
}

TEST(DeviceBench, ElementsThatAreCheckedComeInPieces) {
  BenchOptions options = on_devices(2, "9M");
  options.timing.iters = 1;
  const Result r = run(with_change(options, overwrites((std::int64_t{8} << 20) / 4 + 3)));
  EXPECT_EQ(r.code, Exit::wrong_data);
  EXPECT_EQ(r.row().at("wrong"), 1);
  EXPECT_EQ(r.row().at("first_wrong").at("index"), (8 << 20) / 4 + 3);
}

TEST(DeviceBench, SeveralCallsOnDevicesAreOneLaunchAndAllAreChecked) {
  BenchOptions options = on_devices(2, "1K");
  options.timing.aggregate = 3;
  std::atomic<bool> together = true;
  const Result right = run(with_change(options, [&](auto ops, const Call& call, const auto& real) {
    together = together && ops.size() == 3;
    return real(ops, call);
  }));
  EXPECT_EQ(right.code, Exit::ok) << right.err;
  EXPECT_TRUE(together);
  EXPECT_EQ(right.row().at("calls_per_sample").get<int>() % 3, 0);
  const Result wrong = run(with_change(options, overwrites(5)));
  EXPECT_EQ(wrong.row().at("wrong"), 1);
}

TEST(DeviceBench, AWriteBehindAnArrayOnADeviceIsDamage) {
  const Result r = run(with_change(on_devices(2, "1K"), overwrites(256)));
  EXPECT_EQ(r.code, Exit::wrong_data);
  EXPECT_EQ(r.row().at("wrong"), 4);  // Bytes of a guard.
  EXPECT_EQ(r.row().at("first_wrong").at("index"), 256);
}

/// The number of calls of a row, and the expected number.
void expect_calls(const BenchOptions& options, std::int64_t looked_at) {
  std::atomic<std::int64_t> calls{0};
  const Result r = run(with_change(options, [&](auto ops, const Call& call, const auto& real) {
    ++calls;
    return real(ops, call);
  }));
  ASSERT_EQ(r.code, Exit::ok) << r.err;
  const std::int64_t burst = r.row().at("calls_per_sample");
  EXPECT_EQ(burst > 1, looked_at != 0);
  EXPECT_EQ(r.row().at("time_us").at("n"), 3);
  const std::int64_t checked = 1;
  const std::int64_t warmup = 1;
  EXPECT_EQ(calls, checked + warmup + looked_at + 3 * burst);
}

TEST(DeviceBench, ASampleOfThroughputIsTheMeanOfABurst) {
  expect_calls(on_devices(2, "64"), 3);
}

TEST(DeviceBench, ASampleOfLatencyIsOneCall) {
  BenchOptions options = on_devices(2, "64");
  options.timing.mode = Mode::latency;
  expect_calls(options, 0);
}

TEST(DeviceBench, SamplesAreMeasuredForAsLongAsTheyAreAskedTo) {
  BenchOptions options = on_devices(2, "64");
  options.timing.iters.reset();
  options.timing.min_time = std::chrono::milliseconds(100);
  const Result r = run(options);
  ASSERT_EQ(r.code, Exit::ok) << r.err;
  const Json& time = r.row().at("time_us");
  const double spent = time.at("n").get<double>() * time.at("mean").get<double>() *
                       r.row().at("calls_per_sample").get<double>();
  EXPECT_GE(spent, 0.9 * 100e3);  // Of the slower rank; the clock of rank 0 decides.
}

TEST(DeviceBench, TheCacheOfTheCpuIsNotThatOfADevice) {
  BenchOptions options = on_devices(2, "64");
  options.cold = true;
  try {
    (void)run(options);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), Exit::usage);
    EXPECT_TRUE(contains(failure.what(), "--cold")) << failure.what();
  }
}

StepOptions steps_on_devices() {
  StepOptions options;
  options.ranks = 2;
  options.backend = "nccl_double";
  options.device = DeviceRequest{DeviceType::cuda, {}};
  options.format = Format::json;
  options.model = parse_model("uniform:5x300K", DType::f32);
  options.bucket_bytes = {1 << 20};
  options.compute = std::chrono::milliseconds(1);
  options.calls = true;
  options.rounds = 2;
  options.check = Check::all;
  return options;
}

TEST(DeviceBench, StepsReduceTheGradientsOnDevices) {
  for (const bool as_view : {false, true}) {
    StepOptions options = steps_on_devices();
    options.as_view = as_view;
    const Result r = run(run_step, options);
    EXPECT_EQ(r.code, Exit::ok) << r.err;
    EXPECT_EQ(r.json.at("world").at("ranks").at(1).at("device"), "cuda:1");
    EXPECT_EQ(r.row().at("wrong"), 0);
    for (const char* part :
         {"communication_us", "compute_us", "overlap_us", "no_overlap_us", "calls_us"})
      EXPECT_EQ(r.row().at(part).at("n"), 2) << part;
  }
}

TEST(DeviceBench, AHookThatCannotReduceOnADeviceIsUnavailable) {
  StepOptions options = steps_on_devices();
  options.hook = StepHook::bf16;
  const Result r = run(run_step, options);
  EXPECT_EQ(r.code, Exit::unavailable);
  EXPECT_TRUE(contains(r.err, "host memory")) << r.err;
}

TEST(DeviceBench, TheTableNamesTheDevices) {
  BenchOptions options = on_devices(2, "64");
  options.format = Format::table;
  Captured out;
  Captured err;
  EXPECT_EQ(run_bench(options, out.file(), err.file()), Exit::ok);
  EXPECT_TRUE(contains(out.text(), " threads cuda:0 cuda:1\n")) << out.text();
  EXPECT_TRUE(contains(out.text(), "arrays on devices")) << out.text();
  EXPECT_FALSE(contains(out.text(), "CPUs")) << out.text();
}

}  // namespace
}  // namespace tutti::tool
