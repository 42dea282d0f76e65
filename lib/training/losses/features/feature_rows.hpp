#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/losses/features.hpp>
#include <tutti/row_layout.hpp>

#include "losses/staged.hpp"

// The rows of all ranks in one call of a loss over features. In this folder, only this file
// communicates.

namespace tutti::internal::losses {

using tutti::losses::FeatureBatch;

/// Sizes of the blocks of logits. Sums are made block by block in the order of the rows' numbers,
/// so these sizes are part of every result.
inline constexpr std::int64_t block_rows = 128;
inline constexpr std::int64_t block_columns = 512;

/// An array for vector kernels, not initialised.
template <typename T>
class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(std::size_t count)
      : data_(static_cast<T*>(::operator new(count * sizeof(T), alignment))) {}
  T* data() const noexcept { return data_.get(); }
  T& operator[](std::size_t i) const noexcept { return data_.get()[i]; }

 private:
  static constexpr std::align_val_t alignment{128};
  struct Free {
    void operator()(T* data) const noexcept { ::operator delete(data, alignment); }
  };
  std::unique_ptr<T, Free> data_;
};

/// Returns the number of features of rows.
inline std::size_t count_of_rows(std::int64_t rows, std::int64_t dims) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(dims);
}

/// The largest sum of the squares of a row: products of rows, logits and their sums stay finite.
constexpr double most_squares(bool in_double) {
  return in_double ? 1e280 : 1e30;
}

struct FeatureRules {
  std::string_view loss{};  ///< The name of the loss, for errors.
  std::string options{};    ///< The options in words, for comparison between ranks.
  int sides = 2;            ///< 2: anchors and candidates; 1: anchors with labels.
};

/// Numbers by side and row.
using BySide = std::array<std::vector<double>, 2>;

/// The rows of this call, numbered over all ranks.
///
/// Ranks share the work in whole blocks of rows: rank r computes the rows share(side) has for it,
/// and compares them with all rows of the other side. Features have the type of the computation.
class FeatureRows {
 public:
  /// Collective. A null group means a single process. @throws Error as FeatureLoss.
  FeatureRows(ProcessGroup* group, const FeatureBatch& batch, const FeatureRules& rules,
              const tutti::losses::FeatureEngine& engine, const CallOptions& options);

  int rank() const noexcept { return group_ == nullptr ? 0 : group_->rank(); }
  int ranks() const noexcept { return group_ == nullptr ? 1 : group_->size(); }
  int sides() const noexcept { return sides_; }
  std::int64_t rows() const noexcept { return owners_.total(); }
  std::int64_t dims() const noexcept { return dims_; }
  DType dtype() const noexcept { return dtype_; }
  bool in_double() const noexcept { return in_double_; }

  /// Leaves out the weights of rows for which counts(row) is false.
  void set_weights(const std::function<bool(std::size_t row)>& counts = {});
  /// The weight of each row, divided by the largest that counts, so that sums stay finite; 0 for
  /// rows that do not count. Their sum.
  std::span<const double> weights() const noexcept { return weights_; }
  double mass() const noexcept { return mass_; }
  /// Empty with two sides.
  std::span<const std::int64_t> labels() const noexcept { return labels_; }

  const RowLayout& share(int side) const noexcept { return share_[static_cast<std::size_t>(side)]; }
  /// The features of all rows, [rows(), D].
  const void* features(int side) const noexcept {
    return side_[static_cast<std::size_t>(side)].rows;
  }
  /// The product of each row's anchor and candidate, in double.
  std::vector<double> pair_products() const;

  /// Collective. Takes `width` numbers for each row of this rank's shares; returns those of all
  /// rows, by side.
  BySide gather(BySide&& mine, std::size_t width) const;
  /// Collective unless every rank computed its own rows. Takes the gradient of this rank's share,
  /// in host memory and the features' dtype, and returns that of this rank's rows.
  Tensor gradient(int side, Tensor&& of_share);
  double scale_of(GradScale scale) const;

 private:
  void check(FeatureBatch& batch, const tutti::losses::FeatureEngine& engine);
  void exchange(FeatureBatch& batch, const FeatureRules& rules,
                const tutti::losses::FeatureEngine& engine);
  void set_shares();
  template <typename T>
  void unpack(int side, Tensor&& gathered);

  ProcessGroup* group_;
  CallOptions options_;
  std::array<Staged, 2> staged_;
  std::array<ConstTensorView, 2> own_;  // This rank's rows, on the host.
  ConstTensorView own_labels_{};
  int sides_;
  DType dtype_;
  std::int64_t dims_ = 0;
  bool in_double_;
  bool given_;  // With weights.
  RowLayout owners_;
  std::array<RowLayout, 2> share_;
  std::vector<double> given_weights_, weights_;
  double mass_ = 0;
  std::vector<std::int64_t> labels_;

  /// Features of one side in the type of the computation: the caller's rows, the gathered rows or
  /// their conversion.
  struct Side {
    const void* rows = nullptr;
    Tensor gathered{};
    AlignedArray<std::byte> converted{};
  };
  std::array<Side, 2> side_;
};

}  // namespace tutti::internal::losses
