#include <tutti/ddp/local_sgd.hpp>

#include "conformance/ddp/hook_steps.hpp"

namespace tutti::test {
namespace {

using ddp::PeriodicModelAverager;
using ddp::PostLocalSgdState;

const std::vector<Shape> local_shapes{{12, 10}, {9}, {6, 4, 5}};
const std::vector<Ids> local_layout{{0, 1}, {2}};

class LocalSgd : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, LocalSgd, testing::ValuesIn(worlds()), CaseName());

TEST_P(LocalSgd, ReducesOverAllRanksAndThenOverTheSubGroup) {
  for (const double divisor : {0.0, 1.0})
    for (const DType dtype : {DType::f32, DType::f16})
      on_ranks(world(), [&](ProcessGroup& group) {
        auto part = group.split(group.rank() % 2);
        const auto state = std::make_shared<PostLocalSgdState>(2, &*part);
        const auto hook = ddp::post_local_sgd_hook(state);
        HookSteps steps(group, dtype, local_shapes, local_layout);
        steps.set_divisor(divisor);
        const double tolerance = dtype == DType::f32 ? 1e-5 : 1e-2;
        for (int step = 0; step < 4; ++step) {
          const Results got = steps.run(hook);
          if (step < 2) {
            expect_near(got, steps.mean(step, divisor == 0 ? group.size() : divisor), tolerance);
            continue;
          }
          // The expected result is the mean over the sub-group; with divisor 1, W times the mean.
          Results want(local_shapes.size());
          for (std::size_t id = 0; id < local_shapes.size(); ++id)
            for (std::int64_t i = 0; i < local_shapes[id].numel(); ++i) {
              double sum = 0;
              for (int r = group.rank() % 2; r < group.size(); r += 2)
                sum += gradient_value(id, r, step, i);
              want[id].push_back(sum / part->size() * (divisor == 0 ? 1 : group.size()));
            }
          expect_near(got, want, tolerance);
        }
        EXPECT_EQ(state->step(), 4);
      });
}

TEST_P(LocalSgd, WithoutASubGroupEachRankKeepsItsGradients) {
  for (const double divisor : {0.0, 1.0})
    on_ranks(world(), [&](ProcessGroup& group) {
      const auto state = std::make_shared<PostLocalSgdState>(0);
      HookSteps steps(group, DType::f64, local_shapes, local_layout);
      steps.set_divisor(divisor);
      Results want(local_shapes.size());
      for (std::size_t id = 0; id < local_shapes.size(); ++id)
        for (std::int64_t i = 0; i < local_shapes[id].numel(); ++i)
          want[id].push_back(gradient_value(id, group.rank(), 0, i) *
                             (divisor == 0 ? 1 : group.size()));
      expect_near(steps.run(ddp::post_local_sgd_hook(state)), want, 1e-12);
    });
}

TEST_P(LocalSgd, ContinuesFromASavedState) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto state = std::make_shared<PostLocalSgdState>(3);
    HookSteps steps(group, DType::f64, local_shapes, local_layout);
    for (int step = 0; step < 2; ++step) (void)steps.run(ddp::post_local_sgd_hook(state));
    const auto loaded = std::make_shared<PostLocalSgdState>(3);
    loaded->load(state->save());
    EXPECT_EQ(loaded->step(), 2);
    const auto hook = ddp::post_local_sgd_hook(loaded);
    expect_near(steps.run(hook), steps.mean(2, group.size()), 1e-12);
    const Results last = steps.run(hook);
    EXPECT_EQ(last[0][0], gradient_value(0, group.rank(), 3, 0));
  });
}

TEST_P(LocalSgd, ModelsAreAveragedEveryPeriodBehindTheWarmUp) {
  on_ranks(world(), [&](ProcessGroup& group) {
    PeriodicModelAverager averager(group, 3, 2);
    const double own = group.rank();
    const double mean = (group.size() - 1) / 2.0;
    for (int step = 0; step < 9; ++step) {
      const Buffer a(group, array_of<double>({own, own}));
      const Buffer b(group, array_of<double>({own + 10}));
      const bool averaged = averager.average(std::vector<TensorView>{a, b});
      EXPECT_EQ(averaged, step == 2 || step == 5 || step == 8) << "step " << step;
      const double want = averaged ? mean : own;
      for (const std::int64_t i : {0, 1}) EXPECT_NEAR(a.read().get<double>(i), want, 1e-12);
      EXPECT_NEAR(b.read().get<double>(0), want + 10, 1e-12);
    }
    EXPECT_EQ(averager.step(), 9);
    averager.set_step(2);
    const Buffer a(group, array_of<double>({own}));
    EXPECT_TRUE(averager.average(std::vector<TensorView>{a}));
    EXPECT_NEAR(a.read().get<double>(0), mean, 1e-12);
  });
}

// Small arrays of one dtype are reduced together, large arrays alone.
TEST_P(LocalSgd, ModelsOfAllSizesAndDtypesAreAveraged) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const std::int64_t large = (1 << 18) + 3;  // Elements of f32: more than 1 MiB.
    struct Parameter {
      DType dtype;
      std::int64_t numel;
    };
    std::vector<Parameter> parameters{{DType::f32, 5},      {DType::f32, 0}, {DType::f32, large},
                                      {DType::f32, 7},      {DType::f64, 3}, {DType::f32, 200000},
                                      {DType::f32, 100000}, {DType::f16, 9}, {DType::bf16, 2},
                                      {DType::f64, large},  {DType::f64, 4}, {DType::complex64, 3}};
    std::vector<Array> want;
    std::vector<Buffer> arrays;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto [dtype, numel] = parameters[i];
      const auto inputs =
          make_inputs(dtype, {numel}, group.size(), Fill::exact, ReduceOp::Kind::avg, i);
      arrays.emplace_back(group, inputs[index(group.rank())]);
      const Buffer reduced(group, inputs[index(group.rank())]);
      const bool small = dtype == DType::f16 || dtype == DType::bf16;
      group.all_reduce(reduced, small ? ReduceOp::premul(1.0 / group.size()) : ReduceOp::avg);
      want.push_back(reduced.read());
    }
    std::vector<TensorView> views(arrays.begin(), arrays.end());
    EXPECT_TRUE(PeriodicModelAverager(group, 1).average(views));
    for (std::size_t i = 0; i < arrays.size(); ++i)
      EXPECT_TRUE(same(arrays[i].read(), want[i])) << "parameter " << i;
  });
}

TEST_P(LocalSgd, RefusesIntegers) {
  on_ranks(world(), [&](ProcessGroup& group) {
    PeriodicModelAverager averager(group, 1);
    std::vector<std::int32_t> counts(3);
    expect_error(Errc::invalid_argument, {"averages floats and complex numbers", "i32"},
                 [&] { (void)averager.average(std::vector<TensorView>{counts}); });
    EXPECT_EQ(averager.step(), 0);
    // Without a factor the hook does not read the array, so it may be on a device.
    const auto slices = std::make_shared<ddp::Bucket::Slices>();
    ddp::Bucket far(group, TensorView(counts.data(), DType::f32, {3}, {DeviceType::cuda, 0}),
                    slices);
    far.set_step(0, group.size());
    PostLocalSgdState state(0);
    ddp::post_local_sgd_hook(state, far).wait();
    far.set_step(1, group.size() + 1);
    expect_error(Errc::unsupported, {"post_local_sgd_hook without a sub-group", "f32 on cuda:0"},
                 [&] { (void)ddp::post_local_sgd_hook(state, far); });
  });
}

}  // namespace
}  // namespace tutti::test
