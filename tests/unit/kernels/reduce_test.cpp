#include "kernels/reduce.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <tutti/dtype.hpp>
#include <tutti/error.hpp>
#include <tutti/half.hpp>
#include <tutti/reduce_op.hpp>

#include "kernels/kernel_target.hpp"

#include "support/array.hpp"
#include "support/dtypes.hpp"
#include "support/reference.hpp"
#include "support/small_format.hpp"

namespace tutti::internal {
namespace {

using test::all_dtypes;
using test::is_small;
using test::small_format;
using test::SmallFormat;
using Kind = ReduceOp::Kind;
using Bytes = std::vector<std::byte>;
using Sizes = std::initializer_list<std::size_t>;

constexpr Kind all_kinds[] = {Kind::sum,  Kind::avg, Kind::prod, Kind::min,        Kind::max,
                              Kind::band, Kind::bor, Kind::bxor, Kind::premul_sum, Kind::custom};

/// The type of a complex number's parts.
DType component_of(DType dtype) {
  return dtype == DType::complex64 ? DType::f32 : dtype == DType::complex128 ? DType::f64 : dtype;
}

// ---- Elements, one at a time ------------------------------------------------------------------

std::uint64_t bits_at(DType dtype, const std::byte* from) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, from, size_of(dtype));  // Little-endian hosts only, like the library's wire.
  return bits;
}

double float_at(DType dtype, const std::byte* from) {
  const std::uint64_t bits = bits_at(dtype, from);
  if (dtype == DType::f64) return std::bit_cast<double>(bits);
  if (dtype == DType::f32) return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
  return small_format(dtype).decode(static_cast<unsigned>(bits));
}

void put_float(DType dtype, double value, std::byte* to) {
  std::uint64_t bits = 0;
  if (dtype == DType::f64) {
    bits = std::bit_cast<std::uint64_t>(value);
  } else if (dtype == DType::f32) {
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  } else {
    bits = small_format(dtype).encode(value);
  }
  std::memcpy(to, &bits, size_of(dtype));
}

Bytes slow_fold(DType dtype, Kind kind, std::span<const void* const> inputs,
                std::span<const double> scales, std::size_t n) {
  std::vector<test::Array> arrays;
  for (const void* input : inputs) {
    arrays.emplace_back(dtype, Shape{static_cast<std::int64_t>(n)});
    std::memcpy(arrays.back().bytes().data(), input, n * size_of(dtype));
  }
  const test::Array out = reduce_in_order(kind, arrays, scales);
  return {out.bytes().begin(), out.bytes().end()};
}

/// Compares every bit; any two NaNs are equal.
void expect_same(DType dtype, std::span<const std::byte> expected,
                 std::span<const std::byte> actual) {
  ASSERT_EQ(expected.size(), actual.size());
  if (std::equal(expected.begin(), expected.end(), actual.begin())) return;
  dtype = component_of(dtype);
  const std::size_t size = size_of(dtype);
  for (std::size_t at = 0; at < expected.size(); at += size) {
    const std::byte* e = &expected[at];
    const std::byte* a = &actual[at];
    if (is_float(dtype) && std::isnan(float_at(dtype, e)) && std::isnan(float_at(dtype, a)))
      continue;
    ASSERT_EQ(bits_at(dtype, e), bits_at(dtype, a)) << "element " << at / size;
  }
}

// ---- Inputs -----------------------------------------------------------------------------------

/// Any bit pattern, often a special one. Every other float is between -1 and 1, so that some sums
/// are rounded and not NaN.
class Values {
 public:
  explicit Values(DType of) : dtype_(component_of(of)) {
    const DType dtype = dtype_;
    const std::size_t bits = 8 * size_of(dtype);
    const std::uint64_t sign = std::uint64_t{1} << (bits - 1);
    remarkable_ = {0, 1, 2, 3, sign, sign - 1, sign + 1, ~std::uint64_t{0}, ~std::uint64_t{0} - 1};
    if (!is_float(dtype)) return;
    for (const double value : {1.0, 0.1, 3.0, 448.0, 65504.0, 1e-45, 1e-40, 3e38, 5e-324, 1e308,
                               HUGE_VAL, std::nan("")}) {
      const std::uint64_t code = encode(value);
      remarkable_.insert(remarkable_.end(), {code, code | sign, code + 1});
    }
    for (int i = 0; i < 500; ++i)
      ordinary_.push_back(encode(std::ldexp(static_cast<double>(random_() >> 11), -52) - 1));
  }

  void fill(std::span<std::byte> to) {
    const std::size_t size = size_of(dtype_);
    for (std::size_t i = 0; i < to.size() / size; ++i) {
      std::uint64_t bits = random_();
      if (i % 2 == 0 && !ordinary_.empty()) {
        bits = ordinary_[bits % ordinary_.size()];
      } else if (bits % 2 == 0) {
        bits = remarkable_[(bits >> 8) % remarkable_.size()];
      }
      std::memcpy(&to[i * size], &bits, size);
    }
  }

 private:
  std::uint64_t encode(double value) const {
    std::uint64_t code = 0;
    put_float(dtype_, value, reinterpret_cast<std::byte*>(&code));
    return code;
  }

  DType dtype_;
  std::mt19937_64 random_{42};
  std::vector<std::uint64_t> remarkable_;
  std::vector<std::uint64_t> ordinary_;
};

/// Arrays at odd addresses, each between guard bytes.
class Arrays {
 public:
  Arrays(DType dtype, std::size_t count, std::size_t n, std::size_t misalignment)
      : size_(n * size_of(dtype)), misalignment_(misalignment), values_(dtype) {
    for (std::size_t k = 0; k < count; ++k) {
      storage_.emplace_back(guard + misalignment + size_ + guard, std::byte{0xa5});
      values_.fill((*this)[k]);
      pointers_.push_back((*this)[k].data());
    }
  }

  std::span<std::byte> operator[](std::size_t k) {
    return std::span(storage_[k]).subspan(guard + misalignment_, size_);
  }
  std::span<const void* const> pointers() const { return pointers_; }

  bool guards_intact() const {
    return std::all_of(storage_.begin(), storage_.end(), [this](const Bytes& bytes) {
      const auto intact = [](std::byte b) { return b == std::byte{0xa5}; };
      const auto begin = static_cast<std::ptrdiff_t>(guard + misalignment_);
      return std::all_of(bytes.begin(), bytes.begin() + begin, intact) &&
             std::all_of(bytes.end() - static_cast<std::ptrdiff_t>(guard), bytes.end(), intact);
    });
  }

 private:
  static constexpr std::size_t guard = 128;
  std::size_t size_;
  std::size_t misalignment_;
  Values values_;
  std::vector<Bytes> storage_;
  std::vector<const void*> pointers_;
};

std::vector<double> scales_for(Kind kind, std::size_t inputs) {
  constexpr double some[] = {0.1, -3, 1.0 / 3, 1e-3, 255.5, 1e-30, 7};
  std::vector<double> scales;
  for (std::size_t k = 0; kind == Kind::premul_sum && k < inputs; ++k)
    scales.push_back(some[k % std::size(some)]);
  return scales;
}

std::string describe(DType dtype, Kind kind, std::size_t inputs, std::size_t n) {
  return std::string(name_of(dtype)) + " " + std::string(name_of(kind)) + ", " +
         std::to_string(inputs) + " inputs of " + std::to_string(n);
}

template <typename F>
void for_each_pair(F f) {
  for (const DType dtype : all_dtypes)
    for (const Kind kind : all_kinds)
      if (can_reduce(dtype, kind)) f(dtype, kind);
}

/// fold() of a few values of one C++ type.
template <typename T>
T fold_of(Kind kind, std::vector<T> values, std::vector<double> scales = {}) {
  std::vector<const void*> inputs;
  for (const T& value : values) inputs.push_back(&value);
  T out{};
  fold(dtype_of<T>, kind, &out, inputs, scales, 1);
  return out;
}

// ---- The scalar kernels against the slow way --------------------------------------------------

TEST(ScalarKernels, FoldEqualsTheSlowComputation) {
  for_each_pair([](DType dtype, Kind kind) {
    for (const std::size_t inputs : Sizes{1, 2, 3, 5}) {
      const std::size_t n = 1500;
      SCOPED_TRACE(describe(dtype, kind, inputs, n));
      Arrays arrays(dtype, inputs + 1, n, 0);
      const auto in = arrays.pointers().subspan(1);
      const auto scales = scales_for(kind, inputs);
      scalar::fold(dtype, kind, arrays[0].data(), in, scales, n);
      expect_same(dtype, slow_fold(dtype, kind, in, scales, n), arrays[0]);
    }
  });
}

TEST(ScalarKernels, ReduceFnEqualsTheSlowComputation) {
  for_each_pair([](DType dtype, Kind kind) {
    const ReduceFn fn = scalar::reduce_fn(dtype, kind);
    if (fn == nullptr) return;
    const std::size_t n = 1500;
    SCOPED_TRACE(describe(dtype, kind, 2, n));
    Arrays arrays(dtype, 3, n, 0);
    fn(arrays[0].data(), arrays[1].data(), arrays[2].data(), n);
    expect_same(dtype, slow_fold(dtype, kind, arrays.pointers().subspan(1), {}, n), arrays[0]);
  });
}

TEST(Kernels, PairsAreThoseOfTheTable) {
  for (const DType dtype : all_dtypes) {
    for (const Kind kind : all_kinds) {
      SCOPED_TRACE(describe(dtype, kind, 0, 0));
      const bool allowed = test::has_meaning(dtype, kind);
      const bool has_fn = allowed && kind != Kind::avg && kind != Kind::premul_sum;
      EXPECT_EQ(can_reduce(dtype, kind), allowed);
      EXPECT_EQ(reduce_fn(dtype, kind) != nullptr, has_fn);
      EXPECT_EQ(scalar::reduce_fn(dtype, kind) != nullptr, has_fn);
    }
  }
}

TEST(Kernels, TheBestTargetIsTheDefault) {
  EXPECT_EQ(kernel_target(), kernel_targets().front());
}

TEST(Kernels, NothingIsTouchedForZeroElements) {
  for_each_pair([](DType dtype, Kind kind) {
    const void* const nowhere[] = {nullptr, nullptr, nullptr};
    fold(dtype, kind, nullptr, nowhere, scales_for(kind, 3), 0);
    if (const ReduceFn fn = reduce_fn(dtype, kind)) fn(nullptr, nullptr, nullptr, 0);
    fill_identity(dtype, kind, nullptr, 0);
  });
}

TEST(Kernels, IdentityLeavesEveryElementAsItIs) {
  for_each_pair([](DType dtype, Kind kind) {
    const std::size_t n = 3000;
    SCOPED_TRACE(describe(dtype, kind, 2, n));
    Arrays arrays(dtype, 3, n, 1);
    fill_identity(dtype, kind, arrays[1].data(), n);
    EXPECT_TRUE(arrays.guards_intact());
    if (kind == Kind::avg || kind == Kind::premul_sum) {
      EXPECT_TRUE(std::all_of(arrays[1].begin(), arrays[1].end(),
                              [](std::byte b) { return b == std::byte{0}; }));
      return;
    }
    scalar::reduce_fn(dtype, kind)(arrays[0].data(), arrays[1].data(), arrays[2].data(), n);
    const std::size_t all = n * size_of(dtype);
    dtype = component_of(dtype);
    for (std::size_t at = 0; at < all; at += size_of(dtype)) {
      if (dtype == DType::boolean) {
        ASSERT_EQ(arrays[0][at] != std::byte{0}, arrays[2][at] != std::byte{0});
      } else if (is_float(dtype)) {
        const double x = float_at(dtype, &arrays[2][at]);
        const double y = float_at(dtype, &arrays[0][at]);
        ASSERT_TRUE(x == y || (std::isnan(x) && std::isnan(y))) << x << " became " << y;
      } else {
        ASSERT_EQ(bits_at(dtype, &arrays[0][at]), bits_at(dtype, &arrays[2][at]));
      }
    }
  });
}

// ---- Every instruction set that runs here -----------------------------------------------------

class TargetKernels : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    choose_kernel_target(GetParam());
    ASSERT_EQ(kernel_target(), GetParam());
  }
  void TearDown() override { choose_kernel_target(""); }
};

INSTANTIATE_TEST_SUITE_P(Each, TargetKernels, testing::ValuesIn(kernel_targets()),
                         [](const auto& target) { return std::string(target.param); });

constexpr Sizes counts = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1000, 4099};
constexpr Sizes of_many_inputs = {4200};

TEST_P(TargetKernels, FoldEqualsTheScalarFold) {
  std::size_t misalignment = 0;
  for_each_pair([&](DType dtype, Kind kind) {
    for (const std::size_t inputs : Sizes{1, 2, 3, 4, 5, 16, 17, 33}) {
      for (const std::size_t n : inputs < 16 ? counts : of_many_inputs) {
        SCOPED_TRACE(describe(dtype, kind, inputs, n));
        misalignment = (misalignment + 1) % 16;
        Arrays arrays(dtype, inputs + 1, n, misalignment);
        const auto in = arrays.pointers().subspan(1);
        const auto scales = scales_for(kind, inputs);
        Bytes expected(n * size_of(dtype));
        scalar::fold(dtype, kind, expected.data(), in, scales, n);
        fold(dtype, kind, arrays[0].data(), in, scales, n);
        expect_same(dtype, expected, arrays[0]);
        EXPECT_TRUE(arrays.guards_intact());
      }
    }
  });
}

TEST_P(TargetKernels, FoldMayWriteOverAnyOfItsInputs) {
  for_each_pair([](DType dtype, Kind kind) {
    for (const std::size_t inputs : Sizes{1, 2, 3, 18}) {
      for (std::size_t over = 0; over < inputs; over += inputs == 18 ? 17 : 1) {
        for (const std::size_t n : Sizes{7, 64, 4099}) {
          SCOPED_TRACE(describe(dtype, kind, inputs, n) + ", over " + std::to_string(over));
          Arrays arrays(dtype, inputs, n, 3);
          const auto scales = scales_for(kind, inputs);
          Bytes expected(n * size_of(dtype));
          scalar::fold(dtype, kind, expected.data(), arrays.pointers(), scales, n);
          fold(dtype, kind, arrays[over].data(), arrays.pointers(), scales, n);
          expect_same(dtype, expected, arrays[over]);
          EXPECT_TRUE(arrays.guards_intact());
        }
      }
    }
  });
}

TEST_P(TargetKernels, ReduceFnEqualsTheScalarFnAlsoInPlace) {
  std::size_t misalignment = 0;
  for_each_pair([&](DType dtype, Kind kind) {
    const ReduceFn fn = reduce_fn(dtype, kind);
    if (fn == nullptr) return;
    for (const std::size_t n : counts) {
      SCOPED_TRACE(describe(dtype, kind, 2, n));
      misalignment = (misalignment + 1) % 16;
      for (const std::size_t over : Sizes{0, 1, 2}) {
        Arrays arrays(dtype, 3, n, misalignment);
        Bytes expected(n * size_of(dtype));
        scalar::reduce_fn(dtype, kind)(expected.data(), arrays[1].data(), arrays[2].data(), n);
        fn(arrays[over].data(), arrays[1].data(), arrays[2].data(), n);
        expect_same(dtype, expected, arrays[over]);
        EXPECT_TRUE(arrays.guards_intact());
      }
    }
  });
}

/// An array of all codes of a small float.
Bytes all_codes(DType dtype) {
  const std::size_t size = size_of(dtype);
  const unsigned n = small_format(dtype).code_count();
  Bytes codes(n * size);
  for (unsigned code = 0; code < n; ++code) std::memcpy(&codes[code * size], &code, size);
  return codes;
}

TEST_P(TargetKernels, EveryCodeSurvivesDecodingAndEncoding) {
  for (const DType dtype : all_dtypes) {
    if (!is_small(dtype)) continue;
    SCOPED_TRACE(name_of(dtype));
    const Bytes codes = all_codes(dtype);
    Bytes out(codes.size());
    const void* const in[] = {codes.data()};
    const double one[] = {1};
    fold(dtype, Kind::premul_sum, out.data(), in, one, codes.size() / size_of(dtype));
    expect_same(dtype, codes, out);
  }
}

TEST_P(TargetKernels, HalvesAreWidenedAndRoundedAsScalarsAre) {
  constexpr std::size_t n = 65'536 + 3;
  std::vector<Float16> halves(n);
  for (std::size_t i = 0; i < n; ++i) halves[i].bits = static_cast<std::uint16_t>(i);
  std::vector<float> wide(n);
  widen_halves(wide.data(), halves.data(), n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto want = static_cast<float>(halves[i]);
    EXPECT_TRUE(wide[i] == want || (wide[i] != wide[i] && want != want)) << i;
    // Between two halves, and at the middle of them, which rounds to even.
    wide[i] = want * (i % 3 == 0 ? 1.0F + 0x1p-11F : 1.0F + static_cast<float>(i % 7) * 0x1p-13F);
  }
  std::vector<Float16> back(n);
  narrow_halves(back.data(), wide.data(), n);
  for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(back[i].bits, Float16(wide[i]).bits) << wide[i];
}

TEST_P(TargetKernels, NanIsEncodedAsTheCanonicalQuietNan) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2}) {
    SCOPED_TRACE(name_of(dtype));
    const SmallFormat format = small_format(dtype);
    const Bytes codes = all_codes(dtype);
    Bytes out(codes.size());
    const std::size_t size = size_of(dtype);
    reduce_fn(dtype, Kind::max)(out.data(), codes.data(), codes.data(), codes.size() / size);
    for (std::size_t at = 0; at < out.size(); at += size) {
      if (!std::isnan(float_at(dtype, &codes[at]))) continue;
      ASSERT_EQ(bits_at(dtype, &out[at]) & (format.sign_bit() - 1), format.encode(std::nan("")));
    }
  }
}

// The products need up to twice the bits of the factors, and reach overflow and underflow.
TEST_P(TargetKernels, SmallFloatsAreRoundedToNearestEven) {
  for (const DType dtype : all_dtypes) {
    if (!is_small(dtype)) continue;
    const SmallFormat format = small_format(dtype);
    const Bytes codes = all_codes(dtype);
    Bytes out(codes.size());
    const void* const in[] = {codes.data()};
    for (const double scale : {0.5, 1.5, 0.1, 1 + 0x1p-9, 1 + 0x1p-12, 3 * 0x1p-13, 0x1p-20,
                               5 * 0x1p-22, 0x1p60, 0x1p-130}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " times " + std::to_string(scale));
      const double scales[] = {scale};
      fold(dtype, Kind::premul_sum, out.data(), in, scales, codes.size() / size_of(dtype));
      Bytes expected(codes.size());
      for (unsigned code = 0; code < format.code_count(); ++code) {
        const auto product = static_cast<float>(format.decode(code) *
                                                static_cast<double>(static_cast<float>(scale)));
        put_float(dtype, static_cast<double>(product), &expected[code * size_of(dtype)]);
      }
      expect_same(dtype, expected, out);
    }
  }
}

TEST_P(TargetKernels, SumsOfAllPairsOfByteFloatsAreCorrectlyRounded) {
  for (const DType dtype : {DType::f8e4m3, DType::f8e5m2}) {
    SCOPED_TRACE(name_of(dtype));
    const SmallFormat format = small_format(dtype);
    Bytes a(1 << 16), b(1 << 16), expected(1 << 16), out(1 << 16);
    for (unsigned i = 0; i < 1 << 16; ++i) {
      a[i] = static_cast<std::byte>(i & 255);
      b[i] = static_cast<std::byte>(i >> 8);
      expected[i] =
          static_cast<std::byte>(format.encode(format.decode(i & 255) + format.decode(i >> 8)));
    }
    const void* const in[] = {a.data(), b.data()};
    fold(dtype, Kind::sum, out.data(), in, {}, out.size());
    expect_same(dtype, expected, out);
  }
}

TEST_P(TargetKernels, IntegerAvgWrapsThenTruncatesTowardZero) {
  EXPECT_EQ(fold_of<std::int32_t>(Kind::avg, {-1, -2}), -1);
  EXPECT_EQ(fold_of<std::int32_t>(Kind::avg, {1, 2}), 1);
  EXPECT_EQ(fold_of<std::int8_t>(Kind::avg, {100, 100}), -28);
  EXPECT_EQ(fold_of<std::uint64_t>(Kind::avg, {~std::uint64_t{0}, 0}), ~std::uint64_t{0} / 2);
  // A count that the type cannot represent.
  EXPECT_EQ(fold_of<std::int8_t>(Kind::avg, std::vector<std::int8_t>(200, 1)), 0);
  EXPECT_EQ(fold_of<std::uint8_t>(Kind::avg, std::vector<std::uint8_t>(256, 1)), 0);
}

TEST_P(TargetKernels, OneInputIsCopiedBitForBit) {
  // A signalling NaN with a payload: only a copy preserves it.
  const std::uint32_t bits = 0x7f812345;
  std::uint32_t out = 0;
  const void* const in[] = {&bits};
  for (const Kind kind : {Kind::sum, Kind::avg, Kind::min}) {
    out = 0;
    fold(DType::f32, kind, &out, in, {}, 1);
    EXPECT_EQ(out, bits) << name_of(kind);
  }
}

// ---- Functions of the caller ------------------------------------------------------------------

/// x op y = 10 x + y: digits in the order in which they were combined.
void append_digits(const void* in, void* inout, std::int64_t count, DType dtype, void* context) {
  EXPECT_EQ(dtype, DType::i64);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(in) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(inout) % 64, 0U);
  const auto* x = static_cast<const std::int64_t*>(in);
  auto* y = static_cast<std::int64_t*>(inout);
  for (std::int64_t i = 0; i < count; ++i) y[i] += 10 * x[i];
  if (context != nullptr) *static_cast<std::int64_t*>(context) += count;
}

TEST(CustomFold, IsALeftFoldOfEveryElementAtAnyAddress) {
  for (const std::size_t n : Sizes{0, 1, 1023, 1024, 1025, 5000}) {
    for (std::size_t over = 0; over < 4; ++over) {
      std::vector<Bytes> arrays(4, Bytes(n * 8 + 3));
      std::vector<const void*> inputs;
      for (std::size_t k = 0; k < 4; ++k) {
        for (std::size_t i = 0; i < n; ++i) {
          const auto digit = static_cast<std::int64_t>(k + 1 + i % 3);
          std::memcpy(&arrays[k][3 + i * 8], &digit, 8);
        }
        if (k < 3) inputs.push_back(arrays[k].data() + 3);
      }
      std::int64_t combined = 0;
      fold_custom(DType::i64, ReduceOp::custom(append_digits, false, &combined),
                  arrays[over].data() + 3, inputs, n);
      EXPECT_EQ(combined, static_cast<std::int64_t>(2 * n));
      for (std::size_t i = 0; i < n; ++i) {
        std::int64_t got = 0;
        std::memcpy(&got, &arrays[over][3 + i * 8], 8);
        ASSERT_EQ(got, 123 + static_cast<std::int64_t>(111 * (i % 3))) << i << " of " << n;
      }
    }
  }
}

TEST(CustomFold, WhatTheFunctionThrowsIsAnErrorOfTheBackend) {
  const std::int64_t x = 1;
  std::int64_t out = 0;
  const void* const inputs[] = {&x, &x};
  const auto thrown_by = [&](CustomReduce f) {
    try {
      fold_custom(DType::i64, ReduceOp::custom(f, true), &out, inputs, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::backend);
      return error.message();
    }
    return std::string("nothing");
  };
  EXPECT_EQ(thrown_by([](const void*, void*, std::int64_t, DType, void*) {
              fail(Errc::invalid_argument, "no such row");
            }),
            "the custom reduction threw: invalid_argument: no such row");
  EXPECT_EQ(thrown_by([](const void*, void*, std::int64_t, DType, void*) { throw 7; }),
            "the custom reduction threw something that is not a std::exception");
}

}  // namespace
}  // namespace tutti::internal
