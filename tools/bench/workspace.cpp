#include "bench/workspace.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "bench/staging.hpp"

namespace tutti::tool {
namespace {

constexpr std::byte guard{0xa5};
constexpr std::size_t line = 64;
constexpr std::size_t page = 4096;

std::size_t round_up(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// Bytes of a buffer of `bytes` bytes with its guards; 0 without a buffer. In place both arrays
/// share one buffer.
std::size_t slot_bytes(std::size_t bytes) {
  return bytes == 0 ? 0 : round_up(bytes, line) + 2 * Guarded::guard_bytes;
}

struct Sizes {
  std::size_t in;
  std::size_t out;
};
Sizes buffer_bytes(const Extent& extent, DType dtype, bool in_place) {
  const auto bytes = [dtype](std::int64_t count) {
    return static_cast<std::size_t>(count) * size_of(dtype);
  };
  if (!in_place) return {bytes(extent.in), bytes(extent.out)};
  return {0, bytes(std::max(extent.in_at + extent.in, extent.out_at + extent.out))};
}

}  // namespace

Guarded::Guarded(std::byte* slot, std::size_t bytes, Memory& memory) noexcept
    : slot_(slot), bytes_(bytes), memory_(&memory) {}

void Guarded::paint_guards() const {
  if (slot_ == nullptr) return;
  const auto paint = [](std::byte* piece, std::size_t, std::size_t n) {
    std::memset(piece, static_cast<int>(guard), n);
  };
  write(*memory_, slot_, guard_bytes, paint);
  write(*memory_, data() + bytes_, guard_bytes, paint);
}

void Guarded::poison() const {
  if (slot_ == nullptr) return;
  write(*memory_, data(), bytes_,
        [](std::byte* piece, std::size_t, std::size_t n) { std::memset(piece, 0xff, n); });
}

Mismatches Guarded::damage(std::size_t width) const {
  Mismatches found;
  if (slot_ == nullptr) return found;
  const auto look = [&](const std::byte* at, std::int64_t first) {
    read(*memory_, at, guard_bytes, [&](const std::byte* piece, std::size_t from, std::size_t n) {
      for (std::size_t i = 0; i < n; ++i) {
        if (piece[i] == guard) continue;
        if (found.count++ != 0) continue;
        const std::int64_t offset = first + static_cast<std::int64_t>(from + i);
        const auto size = static_cast<std::int64_t>(width);
        const std::int64_t index = offset < 0 ? -((-offset + size - 1) / size) : offset / size;
        found.first = {index, fmt::format("guard byte {:#04x}", static_cast<int>(guard)),
                       fmt::format("byte {:#04x}", static_cast<int>(piece[i]))};
      }
    });
  };
  // Checks the bytes after the array first: overruns are the usual damage.
  look(data() + bytes_, static_cast<std::int64_t>(bytes_));
  look(slot_, -static_cast<std::int64_t>(guard_bytes));
  return found;
}

std::size_t Workspace::footprint(const Extent& extent, DType dtype, bool in_place) noexcept {
  const Sizes sizes = buffer_bytes(extent, dtype, in_place);
  return slot_bytes(sizes.in) + slot_bytes(sizes.out);
}

std::vector<Buffers> Workspace::lay_out(const Extent& extent, DType dtype, bool in_place,
                                        std::size_t copies) {
  const Sizes sizes = buffer_bytes(extent, dtype, in_place);
  const std::size_t stride = round_up(footprint(extent, dtype, in_place), copies > 1 ? page : line);
  if (slab_.bytes() < stride * copies) {
    slab_ = Tensor();  // Frees the old slab first: both at once may not fit.
    slab_ = Tensor(*memory_, Shape{static_cast<std::int64_t>(stride * copies)}, DType::u8);
  }

  std::vector<Buffers> sets(copies);
  auto* slot = static_cast<std::byte*>(slab_.data());
  const std::size_t width = size_of(dtype);
  for (Buffers& set : sets) {
    set.shared = in_place;
    if (sizes.in != 0) set.in = Guarded(slot, sizes.in, *memory_);
    if (sizes.out != 0) set.out = Guarded(slot + slot_bytes(sizes.in), sizes.out, *memory_);
    const auto pointer_to = [&](const Guarded& buffer, std::int64_t at) {
      return buffer.data() + (in_place ? static_cast<std::size_t>(at) * width : 0);
    };
    const Device device = memory_->device();
    // An empty array needs its dtype: with uneven blocks, the rank takes part in the call.
    set.arrays.in = ConstTensorView(
        extent.in == 0 ? nullptr : pointer_to(in_place ? set.out : set.in, extent.in_at), dtype,
        Shape{extent.in}, device);
    set.arrays.out = TensorView(extent.out == 0 ? nullptr : pointer_to(set.out, extent.out_at),
                                dtype, Shape{extent.out}, device);
    slot += stride;
  }
  return sets;
}

}  // namespace tutti::tool
