#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/fold.hpp"
#include "cuda/fold_kernels.hpp"
#include "kernels/reduce.hpp"
#include "support/dtypes.hpp"

// The arithmetic of the library's kernels, in their build for the host, against the host's
// reductions. Does not run nvcc's build of the same source.

namespace tutti::test {
namespace {

using backend::cuda::Fold;
using Form = Fold::Form;
using Kind = ReduceOp::Kind;
using Bytes = std::vector<std::byte>;

constexpr std::size_t count = 203;  // Elements; not a whole number of words.

bool is_nan(DType dtype, const std::byte* element) {
  if (is_complex(dtype)) {
    const DType part = dtype == DType::complex64 ? DType::f32 : DType::f64;
    return is_nan(part, element) || is_nan(part, element + size_of(part));
  }
  return visit_dtype(dtype, [&]<typename T>() {
    if constexpr (is_float_type<T>) {
      T value;
      std::memcpy(static_cast<void*>(&value), element, sizeof value);
      const auto wide = Wide<T>(value);
      return wide != wide;
    }
    return false;
  });
}

/// True for equal bits; any NaN equals any NaN.
bool same(DType dtype, const std::byte* a, const std::byte* b) {
  const auto size = size_of(dtype);
  for (std::size_t i = 0; i < count * size; i += size)
    if (std::memcmp(a + i, b + i, size) != 0 && !(is_nan(dtype, a + i) && is_nan(dtype, b + i)))
      return false;
  return true;
}

/// The arrays of some ranks in a kernel's slots, with any bits, and the host's result.
class Slots {
 public:
  Slots(DType dtype, Kind kind, int size) : dtype_(dtype), kind_(kind), size_(size) {
    std::mt19937 random(static_cast<unsigned>(dtype) * 1000 + static_cast<unsigned>(kind) * 10 +
                        static_cast<unsigned>(size));
    memory_.resize(slot / sizeof(Block) * static_cast<std::size_t>(size));
    for (std::byte& byte : bytes()) byte = static_cast<std::byte>(random());
    for (int r = 0; r < size; ++r) scales_.push_back(kind == Kind::premul_sum ? 0.3 + 0.7 * r : 0);
    before_.assign(bytes().begin(), bytes().end());
  }

  void run(Form form, int into, std::uint64_t threads) {
    const Fold fold{.slots = bytes().data(),
                    .scales = kind_ == Kind::premul_sum ? scales_.data() : nullptr,
                    .slot = slot,
                    .bytes = count * size_of(dtype_),
                    .size = size_,
                    .into = into,
                    .dtype = dtype_,
                    .kind = kind_,
                    .form = form};
    for (std::uint64_t thread = 0; thread < threads; ++thread)
      backend::cuda::run_fold(fold, thread, threads);
  }

  /// The host's result for the first `ranks`.
  Bytes wanted(int ranks) const {
    Bytes out(count * size_of(dtype_));
    if (ranks == 0) {
      internal::fill_identity(dtype_, kind_, out.data(), count);
      return out;
    }
    std::vector<const void*> inputs;
    for (int r = 0; r < ranks; ++r)
      inputs.push_back(before_.data() + static_cast<std::size_t>(r) * slot);
    const std::span<const double> scales(scales_);
    internal::fold(
        dtype_, kind_, out.data(), inputs,
        kind_ == Kind::premul_sum ? scales.first(inputs.size()) : std::span<const double>(), count);
    return out;
  }
  bool holds(int at, const Bytes& want) {
    return same(dtype_, bytes().data() + static_cast<std::size_t>(at) * slot, want.data());
  }
  /// Nothing was written into this slot, nor behind the last word of any.
  bool is_untouched(int at) { return std::memcmp(begin(at), old(at), slot) == 0; }
  bool ends_where_it_should(int at) {
    const std::size_t word = std::max<std::size_t>(4, size_of(dtype_));
    const std::size_t end = (count * size_of(dtype_) + word - 1) / word * word;
    return std::memcmp(begin(at) + end, old(at) + end, slot - end) == 0;
  }

 private:
  static constexpr std::size_t slot = 3264;
  static_assert(slot >= count * 16 && slot % 16 == 0);

  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(memory_)); }
  const std::byte* begin(int at) { return bytes().data() + static_cast<std::size_t>(at) * slot; }
  const std::byte* old(int at) const {
    return before_.data() + static_cast<std::size_t>(at) * slot;
  }

  DType dtype_;
  Kind kind_;
  int size_;
  struct alignas(16) Block {
    std::byte bytes[16];
  };
  std::vector<Block> memory_;
  std::vector<double> scales_;
  Bytes before_;
};

/// body(slots, size) for every pair that can be reduced. A scan of averages has no meaning.
template <typename Body>
void for_all(bool scans, const Body& body) {
  for (const DType dtype : all_dtypes)
    for (int k = 0; k < reduce_op_count; ++k) {
      const auto kind = static_cast<Kind>(k);
      if (!internal::can_reduce(dtype, kind) || (scans && kind == Kind::avg)) continue;
      for (const int size : {1, 2, 3, 4, 5, 9}) {
        SCOPED_TRACE(std::string(name_of(kind)) + " of " + std::string(name_of(dtype)) + ", " +
                     std::to_string(size) + " ranks");
        body(Slots(dtype, kind, size), size);
      }
    }
}

TEST(Fold, HasTheBitsOfTheHostsReductionForEveryTypeAndOperation) {
  for_all(false, [](Slots slots, int size) {
    const int into = size / 2;
    slots.run(Form::all, into, 64);
    EXPECT_TRUE(slots.holds(into, slots.wanted(size)));
    for (int r = 0; r < size; ++r) {
      EXPECT_TRUE(r == into || slots.is_untouched(r)) << "slot " << r;
      EXPECT_TRUE(slots.ends_where_it_should(r)) << "slot " << r;
    }
  });
}

TEST(Fold, AScanHasTheBitsOfTheHostsReductionOfTheRanksSoFar) {
  for_all(true, [](Slots slots, int size) {
    slots.run(Form::scan, 0, 64);
    for (int r = 0; r < size; ++r) {
      EXPECT_TRUE(slots.holds(r, slots.wanted(r + 1))) << "slot " << r;
      EXPECT_TRUE(slots.ends_where_it_should(r)) << "slot " << r;
    }
  });
}

TEST(Fold, AnExclusiveScanBeginsWithTheIdentity) {
  for_all(true, [](Slots slots, int size) {
    slots.run(Form::exclusive_scan, 0, 64);
    for (int r = 0; r < size; ++r) EXPECT_TRUE(slots.holds(r, slots.wanted(r))) << "slot " << r;
  });
}

TEST(Fold, AnyNumberOfThreadsDoesTheSame) {
  for (const std::uint64_t threads : {1U, 7U, 4096U})
    for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64, DType::complex128}) {
      Slots slots(dtype, Kind::sum, 3);
      slots.run(Form::all, 0, threads);
      EXPECT_TRUE(slots.holds(0, slots.wanted(3))) << threads << " threads, " << name_of(dtype);
    }
}

TEST(FoldImage, IsAFatBinaryWhereThereIsNvccAndNothingElsewhere) {
  const auto image = backend::cuda::fold_image();
  ASSERT_EQ(!image.empty(), bool{TUTTI_KERNELS});
  if (image.empty()) return;
  std::uint32_t magic = 0;
  std::memcpy(&magic, image.data(), sizeof magic);
  EXPECT_EQ(magic, 0xba55ed50U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(image.data()) % 16, 0U);
}

}  // namespace
}  // namespace tutti::test
