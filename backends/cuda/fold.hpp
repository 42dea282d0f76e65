#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/reduce_arithmetic.hpp"

// The library's own reductions on a device. nvcc compiles this header into kernels. Other compilers
// compile it into host functions, so that tests on the host cover the kernels' code.

#ifdef __CUDACC__
#define TUTTI_BOTH_SIDES __host__ __device__
#else
#define TUTTI_BOTH_SIDES
#endif

namespace tutti::backend::cuda {

/// The arguments of a left fold or scan over one piece of every rank's array. The pieces lie in
/// slots of scratch memory, one per rank. The kernel, which gets this struct by value, folds in
/// rank order in the accumulation type and rounds once, as internal::fold().
struct Fold {
  enum class Form : std::uint8_t {
    all,            ///< Slot `into` becomes the fold of all slots.
    scan,           ///< Slot r becomes the fold of slots 0 to r.
    exclusive_scan  ///< Slot r becomes the fold of the slots before r.
  };
  std::byte* slots = nullptr;      ///< In device memory, aligned to 16 bytes.
  const double* scales = nullptr;  ///< By rank; premul_sum only.
  std::uint64_t slot = 0;          ///< The stride of the slots in bytes, a multiple of 16.
  std::uint64_t bytes = 0;         ///< The bytes of elements in a slot.
  std::int32_t size = 0;
  std::int32_t into = 0;
  DType dtype = DType::u8;
  ReduceOp::Kind kind = ReduceOp::Kind::sum;
  Form form = Form::all;
};

/// The elements that a thread reads at once: at least 4 bytes, so that a warp reads whole cache
/// lines. The last word of a slot may extend beyond the slot's elements.
template <typename T>
struct alignas(sizeof(T) < 4 ? 4 : sizeof(T)) [[gnu::may_alias]] Word {
  static constexpr std::size_t size = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
  T at[size];
};

constexpr std::uint64_t words_of(const Fold& fold) noexcept {
  const std::uint64_t word = size_of(fold.dtype) < 4 ? 4 : size_of(fold.dtype);
  return (fold.bytes + word - 1) / word;
}

template <typename T>
TUTTI_BOTH_SIDES Word<T>* word_at(const Fold& fold, int slot, std::uint64_t i) {
  auto* begin = fold.slots + static_cast<std::uint64_t>(slot) * fold.slot;
  return reinterpret_cast<Word<T>*>(begin) + i;
}

/// The accumulators of the elements of one Word. Branches on the reduction for every word: memory
/// bandwidth is the limit, and a kernel per pair of type and reduction would be ten times the code.
template <typename T>
struct FoldedWord {
  static constexpr std::size_t n = Word<T>::size;
  internal::Acc<T> acc[n];

  TUTTI_BOTH_SIDES void add(const Fold& fold, int slot, const Word<T>& word) {
    internal::visit_kind(fold.kind, [&](auto kind) {
      if constexpr (internal::foldable<T, kind()>) {
        for (std::size_t k = 0; k < n; ++k) {
          auto term = internal::widen(word.at[k]);
          if constexpr (kind() == ReduceOp::Kind::premul_sum)
            term = internal::scaled(term, fold.scales[slot]);
          acc[k] = slot == 0 ? term : internal::apply<kind()>(acc[k], term);
        }
      }
    });
  }
  TUTTI_BOTH_SIDES void put(const Fold& fold, int slot, std::uint64_t i) const {
    Word<T> word;
    for (std::size_t k = 0; k < n; ++k) word.at[k] = internal::narrow<T>(acc[k]);
    *word_at<T>(fold, slot, i) = word;
  }
};

template <typename T>
TUTTI_BOTH_SIDES void fold_word(const Fold& fold, std::uint64_t i) {
  constexpr int at_once = 4;  // Slots that are read before the first one is folded.
  FoldedWord<T> folded{};
  for (int first = 0; first < fold.size; first += at_once) {
    Word<T> words[at_once];
    for (int j = 0; j < at_once; ++j)
      if (first + j < fold.size) words[j] = *word_at<T>(fold, first + j, i);
    for (int j = 0; j < at_once; ++j)
      if (first + j < fold.size) folded.add(fold, first + j, words[j]);
  }
  if constexpr (internal::foldable<T, ReduceOp::Kind::avg>) {
    if (fold.kind == ReduceOp::Kind::avg)
      for (auto& sum : folded.acc) sum = internal::divide(sum, static_cast<std::size_t>(fold.size));
  }
  folded.put(fold, fold.into, i);
}

template <typename T>
TUTTI_BOTH_SIDES void scan_word(const Fold& fold, std::uint64_t i) {
  const bool exclusive = fold.form == Fold::Form::exclusive_scan;
  FoldedWord<T> folded{};
  if (exclusive)
    internal::visit_kind(fold.kind, [&](auto kind) {
      for (auto& acc : folded.acc) acc = internal::widen(internal::identity<T, kind()>());
    });
  for (int slot = 0; slot < fold.size; ++slot) {
    const Word<T> word = *word_at<T>(fold, slot, i);
    if (exclusive) folded.put(fold, slot, i);
    folded.add(fold, slot, word);
    if (!exclusive) folded.put(fold, slot, i);
  }
}

/// Folds the words of thread `thread` among `threads` threads.
TUTTI_BOTH_SIDES inline void run_fold(const Fold& fold, std::uint64_t thread,
                                      std::uint64_t threads) {
  internal::visit_type(fold.dtype, [&]<typename T>(T) {
    for (auto i = thread; i < words_of(fold); i += threads)
      fold.form == Fold::Form::all ? fold_word<T>(fold, i) : scan_word<T>(fold, i);
  });
}

}  // namespace tutti::backend::cuda
