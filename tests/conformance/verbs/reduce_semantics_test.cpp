#include <algorithm>
#include <complex>
#include <limits>
#include <utility>

#include "conformance/cells.hpp"
#include "support/dtypes.hpp"

// Edge cases of the reduce ops.

namespace tutti::test {
namespace {

using Kind = ReduceOp::Kind;

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
const std::vector<DType> float_dtypes{DType::f16, DType::bf16,   DType::f32,
                                      DType::f64, DType::f8e4m3, DType::f8e5m2};

Array floats(DType dtype, const std::vector<float>& values) {
  Array array(dtype, {static_cast<std::int64_t>(values.size())});
  visit_dtype(dtype, [&]<typename T>() {
    if constexpr (is_float_type<T>)
      for (std::size_t i = 0; i < values.size(); ++i)
        array.put<T>(static_cast<std::int64_t>(i), T(values[i]));
  });
  return array;
}

class ReduceSemantics : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }

  /// All-reduces inputs[rank] and requires `want` on every rank.
  void expect_all_reduce(const std::vector<Array>& inputs, ReduceOp op, const Array& want,
                         const CallOptions& options = {}) const {
    on_ranks(world(), [&](ProcessGroup& group) {
      const Buffer data(group, inputs[index(group.rank())]);
      group.all_reduce(data, op, options);
      EXPECT_TRUE(same(data.read(), want)) << name_of(op.kind) << " " << name_of(want.dtype());
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, ReduceSemantics, testing::ValuesIn(worlds_of_several()),
                         CaseName());

TEST_P(ReduceSemantics, NanWinsMinAndMaxOnAnyRank) {
  for (const DType dtype : float_dtypes)
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max})
      for (int holder = 0; holder < world().size; ++holder) {
        std::vector<Array> inputs;
        for (int r = 0; r < world().size; ++r)
          inputs.push_back(floats(dtype, {r == holder ? nan : static_cast<float>(r), 1, nan}));
        expect_all_reduce(inputs, op, floats(dtype, {nan, 1, nan}));
      }
}

TEST_P(ReduceSemantics, NegativeZeroIsBelowPositiveZero) {
  for (const DType dtype : float_dtypes)
    for (int holder = 0; holder < world().size; ++holder) {
      std::vector<Array> inputs;
      for (int r = 0; r < world().size; ++r)
        inputs.push_back(floats(dtype, {r == holder ? -0.0F : 0.0F, r == holder ? 0.0F : -0.0F}));
      expect_all_reduce(inputs, ReduceOp::min, floats(dtype, {-0.0F, -0.0F}));
      expect_all_reduce(inputs, ReduceOp::max, floats(dtype, {0.0F, 0.0F}));
    }
}

TEST_P(ReduceSemantics, InfinitiesOfBothSignsSumToNan) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64, DType::f8e5m2}) {
    std::vector<Array> inputs(index(world().size), floats(dtype, {0, inf, 1}));
    inputs.back() = floats(dtype, {inf, -inf, 1});
    expect_all_reduce(inputs, ReduceOp::sum,
                      floats(dtype, {inf, nan, static_cast<float>(world().size)}));
  }
}

TEST_P(ReduceSemantics, AnOverflowingHalfIsInfiniteAndNotTheLargestNumber) {
  const auto n = index(world().size);
  expect_all_reduce(std::vector(n, floats(DType::f16, {65504})), ReduceOp::sum,
                    floats(DType::f16, {inf}));
  expect_all_reduce(std::vector(n, floats(DType::f8e5m2, {57344})), ReduceOp::sum,
                    floats(DType::f8e5m2, {inf}));
  expect_all_reduce(std::vector(n, floats(DType::f8e4m3, {448})), ReduceOp::sum,
                    floats(DType::f8e4m3, {nan}));  // It has no infinity.
}

// The sizes select the different algorithms of gloo, and of hier one lane and several.
TEST_P(ReduceSemantics, AnAverageIsFiniteIfTheSumIsNot) {
  for (const auto& [dtype, value] : {std::pair(DType::f16, 40000.F), {DType::f8e4m3, 320.F}})
    for (const std::size_t block : {1U, 5'000U, 100'000U}) {
      const int size = world().size;
      const Array all = floats(dtype, std::vector<float>(block * index(size), value));
      const Array one = floats(dtype, std::vector<float>(block, value));
      on_ranks(world(), [&, dtype = dtype](ProcessGroup& group) {
        SCOPED_TRACE(name_of(dtype));
        const Buffer in(group, all);
        const Buffer out(group, dtype, all.shape());
        group.all_reduce(in, out, ReduceOp::avg);
        EXPECT_TRUE(same(out.read(), all)) << "all_reduce of " << block;
        const Buffer at_root(group, dtype, all.shape());
        group.reduce(in, at_root, size - 1, ReduceOp::avg);
        if (group.rank() == size - 1) {
          EXPECT_TRUE(same(at_root.read(), all)) << "reduce";
        }
        const Buffer part(group, dtype, one.shape());
        group.reduce_scatter(in, part, Rows(static_cast<std::int64_t>(block)), ReduceOp::avg);
        EXPECT_TRUE(same(part.read(), one)) << "reduce_scatter";
      });
    }
}

// The values are multiples of 2^-8 below 8, so floats add them exactly in every order.
TEST_P(ReduceSemantics, AnAverageOfHalvesIsRoundedOnceAndZeroWhereTheSumIsZero) {
  if (world().backend.starts_with("nccl")) GTEST_SKIP() << "NCCL multiplies each rank's input";
  const int size = world().size;
  const auto value = [&](int rank, std::size_t i) {
    const auto mixed = static_cast<int>((i * 2654435761U + index(rank) * 40503U) >> 7U & 4095U);
    if (i % 4 != 0) return static_cast<float>(mixed - 2048) / 256;
    if (rank == size - 1 && size % 2 == 1) return 0.0F;  // The sum is 0.
    return static_cast<float>(i % 2047 + 1) / (rank % 2 == 0 ? 256.0F : -256.0F);
  };
  for (const std::size_t count : {7UL, 4'000UL, 150'000UL}) {
    std::vector<float> want(count);
    for (std::size_t i = 0; i < count; ++i) {
      for (int r = 0; r < size; ++r) want[i] += static_cast<float>(Float16(value(r, i)));
      want[i] /= static_cast<float>(size);
    }
    std::vector<Array> inputs;
    for (int r = 0; r < size; ++r) {
      std::vector<float> mine(count);
      for (std::size_t i = 0; i < count; ++i) mine[i] = value(r, i);
      inputs.push_back(floats(DType::f16, mine));
    }
    expect_all_reduce(inputs, ReduceOp::avg, floats(DType::f16, want));
  }
}

// In f16, 2048 + 1 is 2048: a sum that rounds at every rank loses every 1.
TEST_P(ReduceSemantics, OrderFixedHalvesAccumulateInFloatAndRoundOnce) {
  const int size = world().size;
  std::vector<Array> inputs(index(size), floats(DType::f16, {1}));
  inputs[0] = floats(DType::f16, {2048});
  const float sum = static_cast<float>(2048 + (size - 1));
  expect_all_reduce(inputs, ReduceOp::sum, floats(DType::f16, {sum}), {.order_fixed = true});
}

// Two summands have only one order.
class ReduceSemanticsOfThree : public ReduceSemantics {};
INSTANTIATE_TEST_SUITE_P(Worlds, ReduceSemanticsOfThree, testing::ValuesIn(worlds({3, 4})),
                         CaseName());

// 2^24 + 1 - 2^24 is 0 from left to right and 1 otherwise.
TEST_P(ReduceSemanticsOfThree, OrderFixedIsALeftFoldOverRanks) {
  std::vector<Array> inputs(index(world().size), floats(DType::f32, {0, 0}));
  inputs[0] = floats(DType::f32, {0x1p24F, 1});
  inputs[1] = floats(DType::f32, {1, 0x1p24F});
  inputs[2] = floats(DType::f32, {-0x1p24F, -0x1p24F});
  expect_all_reduce(inputs, ReduceOp::sum, floats(DType::f32, {0, 0}), {.order_fixed = true});
  inputs[1] = floats(DType::f32, {-0x1p24F, -0x1p24F});
  inputs[2] = floats(DType::f32, {1, 0.5F});
  expect_all_reduce(inputs, ReduceOp::sum, floats(DType::f32, {1, 1 - 0x1p24F + 0.5F}),
                    {.order_fixed = true});
}

class ReproducibleSums : public ReduceSemantics {};
INSTANTIATE_TEST_SUITE_P(Worlds, ReproducibleSums, testing::ValuesIn(worlds()), CaseName());

// Sizes on both sides of where algorithms change. The numbers differ by up to 2^40 and cancel.
TEST_P(ReproducibleSums, TheOrderOfTheRanksDoesNotMatter) {
  if (!reproduces(world().backend)) GTEST_SKIP() << "over NCCL the order is NCCL's";
  const int size = world().size;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const std::size_t count : {3UL, 20'000UL, 150'000UL}) {
      std::vector<Array> inputs;
      for (int r = 0; r < size; ++r) {
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i) {
          const auto drawn = mix(i, static_cast<std::uint64_t>(r));
          const auto exponent = static_cast<int>(drawn % 41) - 20;
          values[i] =
              i % 7 == 0 ? -0.0F : std::ldexp(static_cast<float>(drawn >> 40U) - 0x1p23F, exponent);
        }
        inputs.push_back(floats(dtype, values));
      }
      const auto want = result_of({.reproducible = true}, Kind::sum, inputs, {});
      EXPECT_FALSE(std::signbit(static_cast<float>(dtype == DType::f32 ? want.get<float>(0) : 0)));
      for (int turn = 0; turn < size; ++turn) {
        expect_all_reduce(inputs, ReduceOp::sum, want, {.reproducible = true});
        std::rotate(inputs.begin(), inputs.begin() + 1, inputs.end());
      }
    }
}

// The sum of zeros that are negative is +0; the left fold keeps the sign.
TEST_P(ReproducibleSums, TheGroupsOptionIsOfAllSums) {
  if (!reproduces(world().backend)) GTEST_SKIP() << "over NCCL the order is NCCL's";
  on_fresh_ranks(world(),
                 [&](ProcessGroup& group) {
                   auto half = group.split(0);
                   for (auto* on : {&group, &*half}) {
                     const Buffer data(*on, floats(DType::f32, {-0.0F}));
                     on->all_reduce(data, ReduceOp::max);
                     EXPECT_TRUE(same_bits(data.read(), floats(DType::f32, {-0.0F})));
                     on->all_reduce(data);
                     EXPECT_TRUE(same_bits(data.read(), floats(DType::f32, {0.0F})));
                   }
                 },
                 {.adjust = [](GroupOptions& options) { options.reproducible = true; }});
}

TEST_P(ReproducibleSums, ProductsOfFloatsAndCustomReductionsAreRefused) {
  const auto first = ReduceOp::custom([](const void*, void*, std::int64_t, DType, void*) {}, true);
  on_ranks(world(), [&](ProcessGroup& group) {
    const Buffer data(group, floats(DType::f32, {2}));
    const CallOptions options{.reproducible = true};
    expect_error(Errc::unsupported, {"prod of f32", "order_fixed"},
                 [&] { group.all_reduce(data, ReduceOp::prod, options); });
    expect_error(Errc::unsupported, {"custom of f32"},
                 [&] { group.all_reduce(data, first, options); });
    if (!reproduces(group.backend()))
      expect_error(Errc::unsupported, {"no reproducible sums"},
                   [&] { group.all_reduce(data, ReduceOp::sum, options); });
    expect_usable(group);
  });
}

TEST_P(ReduceSemantics, IntegersWrap) {
  const int size = world().size;
  const auto n = index(size);
  expect_all_reduce(std::vector(n, array_of<std::uint8_t>({200, 1})), ReduceOp::sum,
                    array_of<std::uint8_t>(
                        {static_cast<std::uint8_t>(200 * size), static_cast<std::uint8_t>(size)}));
  expect_all_reduce(std::vector(n, array_of<std::int8_t>({127})), ReduceOp::sum,
                    array_of<std::int8_t>({static_cast<std::int8_t>(127 * size)}));
  expect_all_reduce(std::vector(n, array_of<std::uint16_t>({65535})), ReduceOp::sum,
                    array_of<std::uint16_t>({static_cast<std::uint16_t>(65536 - size)}));
  expect_all_reduce(
      std::vector(n, array_of<std::int16_t>({32767, 256})), ReduceOp::prod,
      array_of<std::int16_t>({size % 2 == 0 ? std::int16_t{1} : std::int16_t{32767}, 0}));
  constexpr auto top32 = std::numeric_limits<std::uint32_t>::max();
  expect_all_reduce(std::vector(n, array_of<std::uint32_t>({top32})), ReduceOp::sum,
                    array_of<std::uint32_t>({top32 - static_cast<std::uint32_t>(size) + 1}));
  constexpr auto top64 = std::numeric_limits<std::int64_t>::max();
  expect_all_reduce(std::vector(n, array_of<std::int64_t>({top64})), ReduceOp::sum,
                    array_of<std::int64_t>({static_cast<std::int64_t>(
                        static_cast<std::uint64_t>(top64) * static_cast<std::uint64_t>(size))}));
  // Each of these products is a multiple of 2^32.
  expect_all_reduce(std::vector(n, array_of<std::int32_t>({1 << 16})), ReduceOp::prod,
                    array_of<std::int32_t>({0}));
}

TEST_P(ReduceSemantics, AverageOfIntegersIsRefusedUnlessItMayTruncate) {
  on_ranks(world(), [](ProcessGroup& group) {
    for (const DType dtype : {DType::u8, DType::i8, DType::i16, DType::u16, DType::i32, DType::u32,
                              DType::i64, DType::u64}) {
      const Buffer data(group, dtype, {4});
      expect_error(Errc::invalid_argument, {"avg", std::string(name_of(dtype))},
                   [&] { group.all_reduce(data, ReduceOp::avg); });
    }
    expect_usable(group);
  });
}

TEST_P(ReduceSemantics, AverageOfIntegersTruncatesTowardZero) {
  const int size = world().size;
  std::vector<Array> inputs(index(size), array_of<std::int32_t>({-1, 1, 0, 0}));
  inputs[0] = array_of<std::int32_t>({-2, 2, -(2 * size - 1), 2 * size - 1});
  const std::int32_t first = (size + 1) / size;  // 3/2, 4/3, 5/4: all 1.
  expect_all_reduce(inputs, ReduceOp::avg, array_of<std::int32_t>({-first, first, -1, 1}),
                    {.integer_avg = true});
}

TEST_P(ReduceSemantics, EachRankScalesByItsOwnFactor) {
  for (const DType dtype : float_dtypes) {
    std::vector<float> factors;
    float sum = 0;
    for (int r = 0; r < world().size; ++r) {
      factors.push_back(static_cast<float>(1 << r) / 4);
      sum += factors.back();
    }
    on_ranks(world(), [&](ProcessGroup& group) {
      const Buffer data(group, floats(dtype, {1, 0}));
      group.all_reduce(data, ReduceOp::premul(factors[index(group.rank())]));
      EXPECT_TRUE(same(data.read(), floats(dtype, {sum, 0}))) << name_of(dtype);
    });
  }
}

TEST_P(ReduceSemantics, APartOfAComplexNumberDoesNotTouchTheOther) {
  using Number = std::complex<double>;
  const int size = world().size;
  std::vector<Array> inputs(index(size), array_of<Number>({{1, 2}, {inf, 1}}));
  inputs.back() = array_of<Number>({{nan, 2}, {1, 1}});
  const auto want = [&](double by) {
    return array_of<Number>({{nan, 2 * size * by}, {inf, size * by}});
  };
  expect_all_reduce(inputs, ReduceOp::sum, want(1));
  expect_all_reduce(inputs, ReduceOp::avg, want(1.0 / size));
  // Times (0.5, 0) would make NaN of both parts.
  expect_all_reduce(inputs, ReduceOp::premul(0.5), want(0.5));
}

TEST_P(ReduceSemantics, BooleansAreAndOrAndXor) {
  const int size = world().size;
  std::vector<Array> inputs(index(size), array_of<bool>({false, true, false, true}));
  inputs.back() = array_of<bool>({false, true, true, false});
  for (const ReduceOp op : {ReduceOp::band, ReduceOp::min, ReduceOp::prod})
    expect_all_reduce(inputs, op, array_of<bool>({false, true, false, false}));
  for (const ReduceOp op : {ReduceOp::bor, ReduceOp::max, ReduceOp::sum})
    expect_all_reduce(inputs, op, array_of<bool>({false, true, true, true}));
  const bool odd = size % 2 != 0;
  expect_all_reduce(inputs, ReduceOp::bxor, array_of<bool>({false, odd, true, !odd}));
}

// A byte of another library may be 2 or 255 and mean true.
TEST_P(ReduceSemantics, BooleanResultsAreZeroOrOne) {
  Array odd_bytes(DType::boolean, {4});
  std::ranges::copy(std::vector{std::byte{2}, std::byte{255}, std::byte{0}, std::byte{1}},
                    odd_bytes.bytes().begin());
  const std::vector<Array> inputs(index(world().size), odd_bytes);
  for (const ReduceOp op :
       {ReduceOp::band, ReduceOp::bor, ReduceOp::sum, ReduceOp::max, ReduceOp::min, ReduceOp::prod})
    expect_all_reduce(inputs, op, array_of<bool>({true, true, false, true}));
}

TEST_P(ReduceSemantics, WhatHasNoMeaningIsRefusedByName) {
  on_ranks(world(), [](ProcessGroup& group) {
    for (const DType dtype : all_dtypes)
      for (int k = 0; k < reduce_op_count; ++k) {
        const auto kind = static_cast<Kind>(k);
        if (has_meaning(dtype, kind)) continue;
        if (kind == Kind::custom) continue;  // As the caller declares.
        const ReduceOp op{kind, 1};
        const Errc code = is_complex(dtype) ? Errc::unsupported : Errc::invalid_argument;
        const Buffer all(group, dtype, {2 * group.size()});
        const Buffer part(group, dtype, {2});
        std::vector<std::string> texts{std::string(name_of(kind)), std::string(name_of(dtype))};
        if (is_complex(dtype)) texts.emplace_back("complex numbers support only sum, avg");
        const CallOptions options{.integer_avg = true};
        expect_error(code, texts, [&] { group.all_reduce(all, op, options); });
        expect_error(code, texts, [&] { group.reduce(part, part, 0, op, options); });
        expect_error(code, texts, [&] { group.reduce_scatter(all, part, {}, op, options); });
        expect_error(code, texts, [&] { group.scan(part, part, op, options); });
        expect_error(code, texts, [&] { group.exclusive_scan(part, part, op, options); });
        EXPECT_FALSE(group.supports(Operation::all_reduce, dtype, op))
            << name_of(kind) << " " << name_of(dtype);
      }
    const Buffer part(group, DType::f32, {2});
    expect_error(Errc::invalid_argument, {"avg", "scan"},
                 [&] { group.scan(part, part, ReduceOp::avg); });
    expect_error(Errc::invalid_argument, {"avg", "exclusive_scan"},
                 [&] { group.exclusive_scan(part, part, ReduceOp::avg); });
    expect_usable(group);
  });
}

// A copy, also if the backend chooses the order, including the payload of a NaN.
TEST_P(ReduceSemantics, EveryRankGetsTheSameBits) {
  for (const DType dtype : all_dtypes)
    for (const Kind kind : kinds_of(dtype)) {
      auto inputs = make_inputs(dtype, {1003}, world().size, Fill::rough, kind, 12);
      if (kind != Kind::avg && kind != Kind::premul_sum)
        inputs = make_inputs(dtype, {1003}, world().size, Fill::bits, kind, 12);
      const auto scales = make_scales(world().size, Fill::rough);
      PerRank<Array> results(world().size);
      on_ranks(world(), [&](ProcessGroup& group) {
        const int rank = group.rank();
        const Buffer data(group, inputs[index(rank)]);
        group.all_reduce(data, op_of(kind, scales, rank), {.integer_avg = true});
        results[rank] = data.read();
      });
      for (const Array& result : results.all())
        EXPECT_TRUE(same_bits(result, results[0])) << name_of(kind) << " " << name_of(dtype);
    }
}

std::vector<World> local_worlds() {
  std::vector<World> all = worlds_of_several();
  std::erase_if(all, [](const World& world) { return world.backend != "local"; });
  return all;
}

class Specification : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Specification, testing::ValuesIn(local_worlds()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Specification);

TEST_P(Specification, SupportsEverythingThatHasAMeaning) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    for (int o = 0; o < operation_count; ++o)
      for (const DType dtype : all_dtypes)
        for (const Kind kind : kinds_of(dtype)) {
          const auto operation = static_cast<Operation>(o);
          if (kind == Kind::avg &&
              (operation == Operation::scan || operation == Operation::exclusive_scan))
            continue;
          EXPECT_TRUE(group.supports(operation, dtype, {kind, 1}))
              << name_of(operation) << " " << name_of(kind) << " " << name_of(dtype);
        }
  });
}

}  // namespace
}  // namespace tutti::test
