#include "ddp/layout.hpp"

#include <gtest/gtest.h>

namespace tutti::ddp {
namespace {

Parameter parameter(std::int64_t numel, DType dtype = DType::f32) {
  return {"p", {nullptr, dtype, {numel}}};
}

using Buckets = std::vector<Ids>;

TEST(Layout, TheInitialOrderIsTheReverseOfRegistration) {
  EXPECT_EQ(initial_order(4), (Ids{3, 2, 1, 0}));
  EXPECT_EQ(initial_order(0), Ids{});
}

TEST(Layout, TheFirstBucketHasItsOwnCap) {
  const std::vector<Parameter> ten(10, parameter(16));  // 64 bytes each.
  EXPECT_EQ(assign_buckets(ten, initial_order(10), {.first_bucket_cap = 128, .bucket_cap = 256}),
            (Buckets{{9, 8}, {7, 6, 5, 4}, {3, 2, 1, 0}}));
}

TEST(Layout, ALargeParameterHasABucketOfItsOwn) {
  const std::vector<Parameter> list{parameter(16), parameter(1000), parameter(16)};
  EXPECT_EQ(assign_buckets(list, {0, 1, 2}, {.first_bucket_cap = 128, .bucket_cap = 128}),
            (Buckets{{0}, {1}, {2}}));
}

TEST(Layout, SmallParametersCountAsAligned) {
  const std::vector<Parameter> list(4, parameter(1));
  EXPECT_EQ(assign_buckets(list, {0, 1, 2, 3}, {.first_bucket_cap = 128, .bucket_cap = 128}),
            (Buckets{{0, 1}, {2, 3}}));
  EXPECT_EQ(padded_numel(parameter(1).value), 16);
  EXPECT_EQ(padded_numel(parameter(17).value), 32);
  EXPECT_EQ(padded_numel(parameter(9, DType::f64).value), 16);
  EXPECT_EQ(padded_numel(parameter(0).value), 0);
}

TEST(Layout, BucketsAreInTheOrderInWhichTheyBecomeFull) {
  // The f64 bucket opens first and is filled last.
  const std::vector<Parameter> list{parameter(8, DType::f64), parameter(16), parameter(16),
                                    parameter(8, DType::f64)};
  EXPECT_EQ(assign_buckets(list, {0, 1, 2, 3}, {.first_bucket_cap = 128, .bucket_cap = 128}),
            (Buckets{{1, 2}, {0, 3}}));
}

}  // namespace
}  // namespace tutti::ddp
