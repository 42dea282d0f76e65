#include "bench/data.hpp"

#include <cstring>

#include "bench/staging.hpp"

namespace tutti::tool {

void Wrong::add(const Mismatches& found, int rank, PlaceMode array) {
  if (count == 0 && found.first)
    first = FirstWrong{rank, std::string(name_of(array)), found.first->index, found.first->expected,
                       found.first->got};
  count += found.count;
}

RowData::RowData(Memory& memory, const Block& block, const Cell& cell, std::uint64_t seed,
                 bool often)
    : memory_(memory),
      cell_(cell),
      pattern_(block.dtype, block.op, cell.ranks, seed),
      pieces_(block.collective->result(cell)),
      width_(size_of(block.dtype)),
      often_(often) {}

void RowData::prepare(const Buffers& set) {
  set.in.paint_guards();
  set.out.paint_guards();
  set.out.poison();
  const ConstTensorView& in = set.arrays.in;
  if (in.data == nullptr) return;
  if (often_ && input_.empty()) {
    input_.resize(in.bytes());
    pattern_.fill(input_.data(), in.shape.numel(), cell_.rank, 0);
  }
  // The bench owns the bytes; the view is const for the call.
  write(memory_, const_cast<void*>(in.data), in.bytes(),
        [&](std::byte* piece, std::size_t at, std::size_t bytes) {
          if (often_)
            std::memcpy(piece, input_.data() + at, bytes);
          else
            pattern_.fill(piece, elements(bytes), cell_.rank, elements(at));
        });
}

/// compare(bytes, first, count) returns the errors in `count` elements of `array` from `first` on.
template <typename Compare>
void RowData::examine(const void* array, std::int64_t count, PlaceMode name,
                      const Compare& compare) {
  Mismatches found;
  read(memory_, array, static_cast<std::size_t>(count) * width_,
       [&](const std::byte* piece, std::size_t at, std::size_t bytes) {
         Mismatches here = compare(piece, elements(at), elements(bytes));
         if (here.first) here.first->index += elements(at);
         if (found.count == 0) found.first = here.first;
         found.count += here.count;
       });
  wrong_.add(found, cell_.rank, name);
}

/// True if the array has the bytes of a copy that exists.
bool RowData::same(const void* array, const std::vector<std::byte>& copy) const {
  bool equal = !copy.empty();
  if (equal)
    read(memory_, array, copy.size(),
         [&](const std::byte* piece, std::size_t at, std::size_t bytes) {
           equal = equal && std::memcmp(piece, copy.data() + at, bytes) == 0;
         });
  return equal;
}

void RowData::inspect_result(const Buffers& set) {
  if (pieces_.empty() || same(set.arrays.out.data, result_)) return;
  const std::int64_t before = wrong_.count;
  const auto* out = static_cast<const std::byte*>(set.arrays.out.data);
  for (const Piece& piece : pieces_)
    examine(out + static_cast<std::size_t>(piece.at) * width_, piece.count, PlaceMode::out,
            [&](const std::byte* bytes, std::int64_t first, std::int64_t count) {
              Pattern::Source source = piece.source;
              source.first += first;
              return pattern_.check(bytes, count, source);
            });
  if (!often_ || wrong_.count != before) return;
  result_.resize(set.arrays.out.bytes());
  read(memory_, out, result_.size(), [&](const std::byte* piece, std::size_t at, std::size_t n) {
    std::memcpy(result_.data() + at, piece, n);
  });
}

void RowData::inspect(const Buffers& set) {
  inspect_result(set);
  wrong_.add(set.out.damage(width_), cell_.rank, PlaceMode::out);
  wrong_.add(set.in.damage(width_), cell_.rank, PlaceMode::in);
  const ConstTensorView& in = set.arrays.in;
  const bool has_own_input = in.data != nullptr && (!set.shared || pieces_.empty());
  if (has_own_input && !same(in.data, input_))
    examine(in.data, in.shape.numel(), PlaceMode::in,
            [&](const std::byte* bytes, std::int64_t first, std::int64_t count) {
              return pattern_.check_filled(bytes, count, cell_.rank, first);
            });
}

}  // namespace tutti::tool
