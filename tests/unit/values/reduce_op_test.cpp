#include <tutti/reduce_op.hpp>

#include <set>
#include <string_view>

#include <gtest/gtest.h>

namespace tutti {
namespace {

using Kind = ReduceOp::Kind;

TEST(ReduceOp, EveryNameIsParsedBack) {
  std::set<std::string_view> names;
  for (int i = 0; i < reduce_op_count; ++i) {
    const auto kind = static_cast<Kind>(i);
    names.insert(name_of(kind));
    EXPECT_EQ(parse_reduce_op(name_of(kind)), kind) << name_of(kind);
  }
  EXPECT_EQ(names.size(), std::size_t{reduce_op_count}) << "two kinds share a name";
}

TEST(ReduceOp, ProdAndMeanAreOtherNames) {
  EXPECT_EQ(parse_reduce_op("prod"), Kind::prod);
  EXPECT_EQ(parse_reduce_op("mean"), Kind::avg);
}

TEST(ReduceOp, OtherNamesAreUnknown) {
  for (const auto* name : {"", "Sum", "sum ", "premul", "unknown reduce op"})
    EXPECT_EQ(parse_reduce_op(name), std::nullopt) << "'" << name << "'";
  EXPECT_EQ(name_of(static_cast<Kind>(reduce_op_count)), "unknown reduce op");
}

TEST(ReduceOp, OnlyPremulHasAScale) {
  EXPECT_EQ(ReduceOp::premul(0.25).scale, 0.25);
  EXPECT_EQ(ReduceOp::premul(0.25).kind, Kind::premul_sum);
  for (const ReduceOp& op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::prod, ReduceOp::min,
                             ReduceOp::max, ReduceOp::band, ReduceOp::bor, ReduceOp::bxor})
    EXPECT_EQ(op.scale, 1) << name_of(op.kind);
}

// Checks three lists: the constants, the kinds and their names.
TEST(ReduceOp, AConstantIsPrintedByItsName) {
  EXPECT_EQ(name_of(ReduceOp::sum.kind), "sum");
  EXPECT_EQ(name_of(ReduceOp::avg.kind), "avg");
  EXPECT_EQ(name_of(ReduceOp::prod.kind), "prod");
  EXPECT_EQ(name_of(ReduceOp::min.kind), "min");
  EXPECT_EQ(name_of(ReduceOp::max.kind), "max");
  EXPECT_EQ(name_of(ReduceOp::band.kind), "band");
  EXPECT_EQ(name_of(ReduceOp::bor.kind), "bor");
  EXPECT_EQ(name_of(ReduceOp::bxor.kind), "bxor");
  EXPECT_EQ(name_of(ReduceOp::premul(2).kind), "premul_sum");
}

}  // namespace
}  // namespace tutti
