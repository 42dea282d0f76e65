// The elements of vector kernels. Included once per instruction set, after <hwy/highway.h>.

#if defined(TUTTI_KERNELS_ELEMENTS_SIMD) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_KERNELS_ELEMENTS_SIMD
#undef TUTTI_KERNELS_ELEMENTS_SIMD
#else
#define TUTTI_KERNELS_ELEMENTS_SIMD
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <tutti/half.hpp>

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

HWY_BEFORE_NAMESPACE();
namespace tutti::internal::simd::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// The structs below pair a storage type with the vectors of its computation. load() reads a vector
// of elements from any address; store() writes one to any address.

template <typename T>
struct Plain {
  using Stored = T;
  using Tag = hn::ScalableTag<T>;
  static auto load(Tag d, const std::byte* from) {
    return hn::LoadU(d, reinterpret_cast<const T*>(from));
  }
  static void store(Tag d, hn::Vec<Tag> v, std::byte* to) {
    hn::StoreU(v, d, reinterpret_cast<T*>(to));
  }
};

struct Bool : Plain<std::uint8_t> {
  static auto load(Tag d, const std::byte* from) {
    return hn::Min(Plain::load(d, from), hn::Set(d, 1));
  }
};

/// The small floats of half.hpp, with the integer algorithm of detail::decode_small and
/// encode_small, because the conversions of Highway 1.0 truncate on some targets.
template <typename T, int exp_bits, int man_bits, bool has_infinity>
struct Small {
  using Stored = decltype(T::bits);
  using Tag = hn::ScalableTag<float>;
  using IntTag = hn::RebindToSigned<Tag>;
  using StoredTag = hn::Rebind<Stored, Tag>;

  static constexpr int shift = 23 - man_bits;  // From the mantissa of T to that of float.
  static constexpr std::int32_t rebias = 127 - ((1 << (exp_bits - 1)) - 1);
  static constexpr std::int32_t magnitude_mask = (1 << (exp_bits + man_bits)) - 1;
  static constexpr std::int32_t infinity = ((1 << exp_bits) - 1) << man_bits;
  static constexpr std::int32_t overflow = has_infinity ? infinity : magnitude_mask;
  static constexpr std::int32_t nan =
      has_infinity ? infinity | (1 << (man_bits - 1)) : magnitude_mask;

  static auto load(Tag d, const std::byte* from) {
    const IntTag di;
    const auto stored = hn::LoadU(StoredTag(), reinterpret_cast<const Stored*>(from));
    const auto bits = hn::PromoteTo(di, stored);
    const auto magnitude = hn::And(bits, hn::Set(di, magnitude_mask));
    const auto sign = hn::ShiftLeft<31 - exp_bits - man_bits>(hn::Sub(bits, magnitude));

    const auto offset = hn::Set(di, rebias << 23);
    const auto is_special = hn::Gt(magnitude, hn::Set(di, overflow - 1));
    const auto special_offset = hn::IfThenElseZero(is_special, offset);
    const auto normal = hn::Add(hn::Add(hn::ShiftLeft<shift>(magnitude), offset), special_offset);

    // The next larger exponent adds an implicit one to the mantissa; the subtraction removes it.
    const auto one = hn::Set(di, 1 << 23);
    const auto subnormal =
        hn::Sub(hn::BitCast(d, hn::Add(normal, one)), hn::BitCast(d, hn::Add(offset, one)));
    const auto is_subnormal = hn::Lt(magnitude, hn::Set(di, 1 << man_bits));
    const auto value = hn::IfThenElse(is_subnormal, hn::BitCast(di, subnormal), normal);
    return hn::BitCast(d, hn::Or(value, sign));
  }

  static void store(Tag d, hn::Vec<Tag> v, std::byte* to) {
    const IntTag di;
    const auto bits = hn::BitCast(di, v);
    const auto magnitude = hn::And(bits, hn::Set(di, 0x7fffffff));
    const auto sign =
        hn::And(hn::ShiftRight<31 - exp_bits - man_bits>(bits), hn::Set(di, magnitude_mask + 1));

    // Rounds to nearest: half a unit is rounded up only if the kept part is odd.
    const auto odd = hn::And(hn::ShiftRight<shift>(magnitude), hn::Set(di, 1));
    const auto half = hn::Set(di, (1 << (shift - 1)) - 1 - (rebias << 23));
    const auto normal = hn::ShiftRight<shift>(hn::Add(magnitude, hn::Add(half, odd)));

    // The unit in the last place of this float is the smallest subnormal of T. Adding the float to
    // a number therefore rounds the number to that unit.
    const auto unit = hn::Set(di, (rebias + 1 + shift) << 23);
    const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, unit));
    const auto subnormal = hn::Sub(hn::BitCast(di, sum), unit);
    const auto is_subnormal = hn::Lt(magnitude, hn::Set(di, (rebias + 1) << 23));

    const auto finite = hn::IfThenElse(is_subnormal, subnormal, normal);
    const auto number = hn::Min(finite, hn::Set(di, overflow));
    const auto is_nan = hn::Gt(magnitude, hn::Set(di, 0x7f800000));
    const auto value = hn::Or(hn::IfThenElse(is_nan, hn::Set(di, nan), number), sign);
    hn::StoreU(hn::DemoteTo(StoredTag(), value), StoredTag(), reinterpret_cast<Stored*>(to));
  }
};

/// Returns the canonical NaN with the sign of v.
template <class D>
auto quiet_nan(D d, hn::Vec<D> v) {
  const hn::RebindToSigned<D> di;
  return hn::CopySign(hn::BitCast(d, hn::Set(di, 0x7fc00000)), v);
}

/// bfloat16, the upper half of a float. Rounding may carry into the exponent.
struct Brain {
  using Stored = std::uint16_t;
  using Tag = hn::ScalableTag<float>;
  using IntTag = hn::RebindToSigned<Tag>;
  using StoredTag = hn::Rebind<Stored, Tag>;

  static auto load(Tag d, const std::byte* from) {
    const auto stored = hn::LoadU(StoredTag(), reinterpret_cast<const Stored*>(from));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(IntTag(), stored)));
  }

  static void store(Tag d, hn::Vec<Tag> v, std::byte* to) {
    const hn::RebindToUnsigned<Tag> du;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto number = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
    const auto nan = hn::BitCast(du, quiet_nan(d, v));
    const auto value = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), nan, number);
    const auto upper = hn::BitCast(IntTag(), hn::ShiftRight<16>(value));
    hn::StoreU(hn::DemoteTo(StoredTag(), upper), StoredTag(), reinterpret_cast<Stored*>(to));
  }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)

/// float16 on processors that convert it, rounding to nearest even. NaNs are handled apart, because
/// the conversion would keep their payloads.
struct Half {
  using Stored = hwy::float16_t;
  using Tag = hn::ScalableTag<float>;
  using StoredTag = hn::Rebind<Stored, Tag>;

  static auto load(Tag d, const std::byte* from) {
    return hn::PromoteTo(d, hn::LoadU(StoredTag(), reinterpret_cast<const Stored*>(from)));
  }
  static void store(Tag d, hn::Vec<Tag> v, std::byte* to) {
    const auto canonical = hn::IfThenElse(hn::IsNaN(v), quiet_nan(d, v), v);
    hn::StoreU(hn::DemoteTo(StoredTag(), canonical), StoredTag(), reinterpret_cast<Stored*>(to));
  }
};

#else

using Half = Small<Float16, 5, 10, true>;

#endif

using Inputs = std::span<const void* const>;
using Scales = std::span<const double>;

const std::byte* at(const void* array, std::size_t bytes) {
  return static_cast<const std::byte*>(array) + bytes;
}
std::byte* at(void* array, std::size_t bytes) {
  return static_cast<std::byte*>(array) + bytes;
}

}  // namespace
}  // namespace tutti::internal::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
#endif
