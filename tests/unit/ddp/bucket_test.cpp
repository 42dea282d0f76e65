#include <tutti/ddp/bucket.hpp>

#include <gtest/gtest.h>

#include <tutti/ddp/gradient_reducer.hpp>
#include <tutti/half.hpp>

#include "support/errors.hpp"
#include "support/ranks.hpp"

namespace tutti::test {
namespace {

using ddp::Bucket;

std::shared_ptr<const Bucket::Slices> two_slices() {
  return std::make_shared<const Bucket::Slices>(Bucket::Slices{
      {.id = 4, .offset = 0, .shape = {2, 3}}, {.id = 1, .offset = 16, .shape = {3}}});
}

TEST(Bucket, GradientsArePartsOfTheBuffer) {
  on_ranks({"local", 1, false}, [](ProcessGroup& group) {
    std::vector<float> values(32);
    const Bucket bucket(group, values, two_slices(), 1, 3);
    EXPECT_EQ(bucket.gradient(0).data, values.data());
    EXPECT_EQ(bucket.gradient(0).shape, (Shape{2, 3}));
    EXPECT_EQ(bucket.gradient(1).data, values.data() + 16);
    EXPECT_EQ(bucket.slices()[1].id, 1U);
    EXPECT_FALSE(bucket.is_last());

    std::vector<Float16> halves(32);
    const Bucket other = bucket.over(halves);
    EXPECT_EQ(other.gradient(1).data, halves.data() + 16);
    EXPECT_EQ(other.gradient(1).dtype, DType::f16);
    EXPECT_EQ(other.index(), 1);
    std::vector<float> longer(33);
    expect_error(Errc::invalid_argument, {"[33]", "[32]"}, [&] { (void)bucket.over(longer); });
  });
}

TEST(Bucket, AnotherBufferReplacesItsArrayAndIsKept) {
  on_ranks({"local", 1, false}, [](ProcessGroup& group) {
    std::vector<float> values(32);
    Bucket bucket(group, values, two_slices());
    const auto own = bucket;
    auto other = std::make_shared<std::vector<float>>(32);
    const std::weak_ptr<void> kept = other;
    bucket.set_buffer(*other, other);
    EXPECT_EQ(bucket.gradient(1).data, other->data() + 16);
    EXPECT_EQ(own.buffer().data, values.data());
    other.reset();
    const Bucket without = bucket.over(values);
    EXPECT_FALSE(kept.expired());

    std::vector<double> wide(32);
    TensorView far(values);
    far.device = {DeviceType::cuda, 1};
    TensorView null(values);
    null.data = nullptr;
    for (const auto& [array, text] : {std::pair<TensorView, const char*>(wide, "f64 [32] on cpu"),
                                      {view(values, {2, 16}), "f32 [2, 16] on cpu"},
                                      {far, "f32 [32] on cuda:1"}})
      expect_error(Errc::invalid_argument,
                   {std::string("the array for bucket 0 is ") + text, "must be f32 [32] on cpu"},
                   [&, &array = array] { bucket.set_buffer(array); });
    expect_error(Errc::invalid_argument, {"bucket 0 is null"}, [&] { bucket.set_buffer(null); });
    bucket.set_buffer(values);
    EXPECT_TRUE(kept.expired());
    std::vector<float> both(33);
    Bucket shifted(group, std::span(both).first(32), two_slices());
    expect_error(Errc::invalid_argument, {"bucket 0", "overlaps its buffer"},
                 [&] { shifted.set_buffer(std::span(both).last(32)); });
  });
}

TEST(Bucket, RefusesArraysThatDoNotHoldItsSlices) {
  on_ranks({"local", 1, false}, [](ProcessGroup& group) {
    std::vector<float> values(18);
    expect_error(Errc::invalid_argument, {"parameter 1 has 3 elements at offset 16", "has only 18"},
                 [&] { Bucket(group, values, two_slices()); });
    expect_error(Errc::invalid_argument, {"[2, 9]"}, [&] {
      Bucket(group, view(values, {2, 9}), two_slices());
    });
    expect_error(Errc::invalid_argument, {"slices of a bucket are null"},
                 [&] { Bucket(group, values, nullptr); });
  });
}

TEST(Bucket, TheReductionDividesByTheDivisor) {
  on_ranks({"local", 3, false}, [](ProcessGroup& group) {
    std::vector<float> wide(32);
    std::vector<BFloat16> small(32);
    Bucket bucket(group, wide, two_slices());
    EXPECT_EQ(bucket.op(), ReduceOp::avg);
    EXPECT_EQ(bucket.over(small).op(), ReduceOp::premul(1.0 / 3)) << "may overflow in the sum";
    bucket.set_step(7, 1);
    EXPECT_EQ(bucket.op(), ReduceOp::sum);
    bucket.set_step(7, 5);
    EXPECT_EQ(bucket.op(), ReduceOp::premul(0.2));
    EXPECT_EQ(bucket.step(), 7);
  });
}

}  // namespace
}  // namespace tutti::test
