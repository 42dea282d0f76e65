#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <tutti/grad_scale.hpp>
#include <tutti/losses/loss.hpp>
#include <tutti/process_group.hpp>

// The common part of the losses over features (clip.hpp, siglip.hpp, sup_con.hpp). They compare
// each row of features with the rows of all ranks; the matrix of all pairs is computed tile by tile
// and never kept. Rules of arrays, calls and devices: losses/loss.hpp.
// docs/design/training.md.

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

/// The rows of this rank. Each array is on the host or on the group's device.
struct FeatureBatch {
  ConstTensorView anchors;  ///< [N_r, D]; f32, f64, f16 or bf16; finite. Not normalised here.
  /// Clip, SigLip: [N_r, D], of the same dtype. Row i belongs to row i of the anchors.
  /// Refused by SupCon.
  ConstTensorView candidates{nullptr, DType::f32, Shape::vector(0)};
  /// SupCon: i64 [N_r]. Rows with the same label are positives of each other. Refused by the
  /// others.
  ConstTensorView labels{nullptr, DType::i64, Shape::vector(0)};
  /// The weight of each row's terms, [N_r]; f64, f32, f16 or bf16; finite, 0 or more. A loss is
  /// then the weighted mean over the rows. Constants for the gradient. All ranks or none pass it.
  std::optional<ConstTensorView> weight{};
};

/// The result on one rank. Gradients have the shape, dtype and device of the features.
struct FeatureResult {
  double loss = 0;      ///< The same on every rank. 0 if no row has a term.
  Tensor grad_anchors;  ///< d loss / d anchors of this rank's rows, times the GradScale's factor.
  Tensor grad_candidates;  ///< The same of the candidates. Empty for SupCon.
  /// d loss / d logit_scale. The same on every rank: with GradScale::sum the derivative itself,
  /// which a reducer that averages keeps; otherwise 1 / W of it, for a reducer that adds.
  double grad_logit_scale = 0,
         grad_bias = 0;  ///< The same by the bias; 0 for losses without one.
};

/// A product of row-major matrices: c [m, n] = a [m, k] b, where b is [k, n], or [n, k] if
/// `b_transposed` is set.
struct MatrixProduct {
  DType dtype = DType::f32;   ///< f32 or f64.
  bool b_transposed = false;  ///< b is [n, k].
  std::int64_t m = 0,         ///< Rows of a and c.
      n = 0,                  ///< Columns of c.
      k = 0;                  ///< Columns of a.
  const void* a = nullptr;    ///< [m, k]
  const void* b = nullptr;    ///< [k, n] or [n, k].
  void* c = nullptr;          ///< [m, n]; overwritten.
  std::int64_t a_stride = 0,  ///< Elements from one row of a to the next.
      b_stride = 0,           ///< The same of b.
      c_stride = 0;           ///< The same of c.
};
/// Computes one product on the calling thread. Several threads may call it at the same time. Must
/// not throw, and must return the same bits for the same numbers.
using Gemm = void (*)(const MatrixProduct& product);

/// Options of the computation. Only `in_double` and `gemm` change a result.
struct FeatureEngine {
  int threads = 1;               ///< Threads of this rank in a call.
  std::int64_t tile_rows = 128,  ///< Rows of logits of a thread at a time; a multiple of 128.
      tile_columns = 512;        ///< Columns at a time; a multiple of 512.
  /// Computes f32, f16 and bf16 features in double. Otherwise products and exponentials are f32,
  /// and sums over blocks of 512 columns are added in double.
  bool in_double = false;
  /// The products; null: Eigen, in the fastest form for this machine. All ranks or none set it.
  Gemm gemm = nullptr;
};

/// A loss over the features of all ranks: of row i with every row, as in one process.
///
/// Ranks share the work in blocks of 128 rows, whatever the split of the rows. Tiles lie by the
/// numbers of rows over all ranks, so that the loss and the gradients have the same bits for every
/// split, world size, number of threads and tile size, on machines with the same instruction set.
///
/// f32 gradients have errors of about 1e-6 of their largest element. Errors are larger for logits
/// above 100: a logit has an error of about 1e-7 of logit_scale |a| |c|, and where that is above 1,
/// only the size of the gradients is right. They are also larger where the terms of a gradient
/// cancel (equal rows, label smoothing, scales below 1): 6e-5 was seen. in_double rounds
/// once.
///
/// Memory: the gathered features in the type of the computation, the gradients, about a hundred
/// bytes for each row, and for each thread a block of logits and the gradients of its rows: less
/// than 4 MiB for D <= 1024 in f32, 6 MiB in double, with the default tile_rows.
/// On the wire, each rank sends: its features to all ranks; then two or three doubles for each row
/// of each side; gradients of rows that it computed for another rank.
///
/// One call at a time; otherwise thread rules are those of the group.
class FeatureLoss {
 public:
  FeatureLoss(FeatureLoss&&) noexcept;
  FeatureLoss& operator=(FeatureLoss&&) noexcept;
  virtual ~FeatureLoss();

  /// @throws Error on every rank. The rank that causes it gets invalid_argument (shapes, features
  ///         that are not finite or too large to multiply), unsupported (a device other than the
  ///         group's; a build without Eigen and no `gemm`) or count_overflow (2^31 rows of its
  ///         own); other ranks get mismatch. Ranks with other options, dtypes or D get mismatch.
  ///         If the ranks together have 2^31 rows, all get count_overflow.
  FeatureResult operator()(ProcessGroup& group, const FeatureBatch& batch,
                           const CallOptions& options = {}) {
    return compute(&group, batch, options);
  }
  /// One process, without a group.
  FeatureResult operator()(const FeatureBatch& batch) { return compute(nullptr, batch, {}); }

  /// The factor of the logits. It and bias() are the same on every rank, and parameters that train:
  /// checkpoints of the loss do not have them.
  double logit_scale() const noexcept { return logit_scale_; }
  /// Added to the logits by SigLip, otherwise 0. The options keep the numbers that the loss was
  /// made with.
  double bias() const noexcept { return bias_.value_or(0); }
  void set_logit_scale(double logit_scale);  ///< 1e-6 to 1e6, or Error invalid_argument.
  /// @throws Error invalid_argument for Clip and SupCon, which have none.
  void set_bias(double bias);

 protected:
  /// `name` is a literal; errors begin with it. Without `bias` set_bias() is refused.
  FeatureLoss(std::string_view name, double logit_scale, std::optional<double> bias,
              GradScale grad_scale, const FeatureEngine& engine);
  std::string_view name() const noexcept { return name_; }          ///< Errors begin with it.
  const FeatureEngine& engine() const noexcept { return engine_; }  ///< Of the options.
  GradScale grad_scale() const noexcept { return grad_scale_; }     ///< Of the options.

 private:
  /// A null group is one process.
  virtual FeatureResult compute(ProcessGroup* group, const FeatureBatch& batch,
                                const CallOptions& options) = 0;

  std::string_view name_;
  double logit_scale_;
  std::optional<double> bias_;
  GradScale grad_scale_;
  FeatureEngine engine_;
};

}  // namespace losses
}  // namespace tutti
