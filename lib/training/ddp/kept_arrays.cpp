#include "ddp/kept_arrays.hpp"

#include <cstddef>
#include <cstring>
#include <utility>

#include "values/fail.hpp"

namespace tutti::ddp {
namespace {

using internal::Reader;
using internal::Writer;

/// Returns the bits of floats as integers, which a Writer saves in the same byte order on every
/// host.
template <typename Bits>
std::vector<Bits> bits_of(const std::vector<std::byte>& bytes) {
  std::vector<Bits> bits(bytes.size() / sizeof(Bits));
  if (!bits.empty()) std::memcpy(bits.data(), bytes.data(), bytes.size());
  return bits;
}

template <typename Bits>
std::vector<std::byte> bytes_of(const std::vector<Bits>& bits) {
  std::vector<std::byte> bytes(bits.size() * sizeof(Bits));
  if (!bytes.empty()) std::memcpy(bytes.data(), bits.data(), bytes.size());
  return bytes;
}

}  // namespace

void KeptArrays::put(std::uint64_t key, const ConstTensorView& array) {
  const auto* first = static_cast<const std::byte*>(array.data);
  arrays_[key] = {array.dtype, std::vector<std::byte>(first, first + array.bytes())};
}

bool KeptArrays::take(std::uint64_t key, const TensorView& to) {
  const auto found = arrays_.find(key);
  if (found == arrays_.end()) return false;
  const auto array = std::move(found->second);
  arrays_.erase(found);
  if (array.dtype != to.dtype || array.bytes.size() != to.bytes()) return false;
  if (to.bytes() != 0) std::memcpy(to.data, array.bytes.data(), to.bytes());
  return true;
}

bool KeptArrays::take_or_throw(std::uint64_t key, const TensorView& to, std::string_view what) {
  const auto found = arrays_.find(key);
  if (found == arrays_.end()) return false;
  const auto& [dtype, bytes] = found->second;
  if (dtype != to.dtype || bytes.size() != to.bytes())
    internal::failf(Errc::invalid_argument,
                    "{} {} has {} elements of {} in the hook's state, and {} of {} in its bucket; "
                    "load a state of the same model",
                    what, key, bytes.size() / size_of(dtype), name_of(dtype), to.shape.numel(),
                    name_of(to.dtype));
  return take(key, to);
}

void KeptArrays::write(Writer& out) const {
  out.u64(arrays_.size());
  for (const auto& [key, array] : arrays_) {
    const bool wide = array.dtype == DType::f64;
    out.u64(key).u8(wide ? 1 : 0).u64(array.bytes.size() / size_of(array.dtype));
    if (wide)
      out.numbers(bits_of<std::uint64_t>(array.bytes));
    else
      out.numbers(bits_of<std::uint32_t>(array.bytes));
  }
}

KeptArrays KeptArrays::read(Reader& in) {
  KeptArrays all;
  for (auto left = in.u64(); left != 0; --left) {
    const auto key = in.u64();
    const bool wide = in.u8() != 0;
    const auto count = in.u64();
    all.arrays_[key] = {wide ? DType::f64 : DType::f32,
                        wide ? bytes_of(in.numbers<std::uint64_t>(count))
                             : bytes_of(in.numbers<std::uint32_t>(count))};
  }
  return all;
}

}  // namespace tutti::ddp
