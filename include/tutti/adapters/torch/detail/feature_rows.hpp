#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <tutti/adapters/torch/detail/collective.hpp>
#include <tutti/gather.hpp>
#include <tutti/grad_scale.hpp>

// The rows of the losses over features (torch/feature_losses.hpp).

namespace tutti::libtorch {

/// The same on all ranks.
struct FeatureLossOptions {
  GradScale grad_scale = GradScale::sum;
  double label_smoothing = 0;  ///< clip_loss; 0 to 1, as of torch's cross_entropy.
  /// The rows and columns of the logits that exist at a time. A tile takes about
  /// 4 tile_rows tile_columns numbers. Ranks may differ.
  std::int64_t tile_rows = 1024, tile_columns = 4096;
  CallOptions call{};
};

namespace detail {

struct FeatureArguments {
  std::string name;  ///< Of the function.
  std::array<at::Tensor, 2> features;
  std::size_t sides = 2;
  at::Tensor scale, bias{}, labels{};
};

/// This rank's rows and all rows, in the dtype of products.
class FeatureRows {
 public:
  /// Collective.
  FeatureRows(ProcessGroup& group, const FeatureArguments& of, const FeatureLossOptions& options,
              bool records)
      : group_(group), options_(options), device_(to_torch(group.memory().device())) {
    agree(of, records);
    const at::Tensor& features = of.features[0];
    const std::int64_t dims = features.size(1);
    type_ = features.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor joined =
        of.sides == 1 ? features.detach() : at::cat({features, of.features[1]}, 1).detach();
    const at::Tensor all = gather(joined).to(type_);
    for (std::size_t side = 0; side < 2; ++side)
      all_[side] = all.narrow(1, of.sides == 1 ? 0 : static_cast<std::int64_t>(side) * dims, dims);
    if (of.labels.defined()) labels = gather(of.labels);
  }

  std::int64_t own() const { return layout_[group_.rank()]; }
  std::int64_t total() const { return layout_.total(); }
  double scale() const { return scale_; }
  /// A rank records gradients.
  bool has_gradients() const { return has_gradients_; }
  const FeatureLossOptions& options() const { return options_; }
  at::TensorOptions numbers() const { return at::TensorOptions(at::kDouble).device(device_); }

  /// This rank's rows of an array of all rows.
  at::Tensor part(const at::Tensor& all) const {
    return all.narrow(0, layout_.offset(group_.rank()), own());
  }
  at::Tensor own_features(std::size_t side) const { return part(all_[side]); }
  /// The logits of own pairs, [own], f64.
  at::Tensor own_logits() const {
    return (own_features(0).to(at::kDouble) * own_features(1).to(at::kDouble)).sum(1) * scale_ +
           bias_;
  }
  at::Tensor gather(const at::Tensor& local) const {
    const at::Tensor x = local.contiguous();
    return to_torch(
        tutti::all_gather_rows(group_, view(x), layout_, in_torch(x, options_.call)).data);
  }

  struct Tile {
    at::Tensor logits;   ///< [rows, columns]
    at::Tensor columns;  ///< [columns, D]: features of the other side.
    std::int64_t row, rows, column;
    std::int64_t diagonal;  ///< Of own pairs.

    at::Tensor of_rows(const at::Tensor& x) const { return x.narrow(0, row, rows); }
    at::Tensor of_columns(const at::Tensor& x) const { return x.narrow(0, column, logits.size(1)); }
    at::Tensor own_pairs() const { return logits.diagonal(diagonal); }
    /// Those of an array by row that are in own_pairs().
    at::Tensor of_own_pairs(const at::Tensor& x) const {
      const std::int64_t begin = row + std::max<std::int64_t>(0, -diagonal);
      return x.narrow(0, std::min(begin, x.size(0)), own_pairs().size(0));
    }
  };
  /// Calls f with each tile of own rows of `side`.
  template <typename F>
  void for_tiles(std::size_t side, const F& f) const {
    const at::Tensor own_rows = own_features(side);
    for (std::int64_t row = 0; row < own(); row += options_.tile_rows) {
      const std::int64_t rows = std::min(options_.tile_rows, own() - row);
      for (std::int64_t column = 0; column < total(); column += options_.tile_columns) {
        const at::Tensor columns =
            all_[1 - side].narrow(0, column, std::min(options_.tile_columns, total() - column));
        at::Tensor logits = at::mm(own_rows.narrow(0, row, rows), columns.t()).mul_(scale_);
        if (bias_ != 0) logits.add_(bias_);
        const std::int64_t first = layout_.offset(group_.rank()) + row;
        f(Tile{logits, columns, row, rows, column, first - column});
      }
    }
  }
  at::Tensor sums_of(std::size_t side) const { return at::zeros_like(own_features(side)); }

  /// The sums over ranks of `x` [3].
  at::Tensor sum(at::Tensor x) const {
    group_.all_reduce(mutable_view(x), ReduceOp::sum, in_torch(x, options_.call));
    return x;
  }

  at::Tensor labels;  // Of all rows.

 private:
  /// Compares the ranks' arguments and sets the layout.
  void agree(const FeatureArguments& of, bool records) {
    const std::string wrong = caught_refusal(of);
    std::ostringstream text;
    text.precision(17);
    if (!wrong.empty()) {
      text << wrong;
    } else {  // A mark and whether gradients are recorded; rows; what is the same on all ranks.
      constexpr std::array names{"sum", "mean", "local_slice"};
      const at::Tensor& x = of.features[0];
      text << "ok" << records << '\n'
           << x.size(0) << '\n'
           << of.name << " of " << c10::toString(x.scalar_type()) << " [N, " << x.size(1)
           << "], scale " << scale_ << ", bias " << bias_ << ", label_smoothing "
           << options_.label_smoothing << ", grad_scale "
           << names[static_cast<std::size_t>(options_.grad_scale)];
    }
    const std::string own = text.str();
    CallOptions call = on_current_stream(device_, options_.call);
    call.memory = nullptr;
    const auto all = all_gather_bytes(group_, own, call);
    if (!wrong.empty()) fail(Errc::invalid_argument, of.name + ": " + wrong);
    const auto text_of_rank = [](const std::string& report) {
      return report.substr(report.find('\n', 4) + 1);
    };
    std::vector<std::int64_t> counts;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const std::string& report = all[rank];
      const auto who = of.name + ": rank " + std::to_string(rank);
      if (report.substr(0, 2) != "ok")
        fail(Errc::mismatch, who + " has invalid arguments: " + report);
      if (text_of_rank(report) != text_of_rank(own))
        fail(Errc::mismatch, who + " has " + text_of_rank(report) + "; rank " +
                                 std::to_string(group_.rank()) + " has " + text_of_rank(own));
      has_gradients_ = has_gradients_ || report[2] == '1';
      counts.push_back(std::stoll(report.substr(4)));
    }
    layout_ = RowLayout(counts);
  }

  /// Reads the scale and the bias. Why this rank's arguments are not valid; empty if they are.
  std::string refusal(const FeatureArguments& of) {
    const auto& x = of.features[0];
    for (std::size_t side = 0; side < of.sides; ++side) {
      const at::Tensor& y = of.features[side];
      const std::string what = side == 0 ? "the features" : "the candidates";
      if (!y.defined()) return what + " are not defined";
      if (y.device() != device_)
        return what + " are on " + y.device().str() + "; the group is on " + device_.str();
      if (y.dim() != 2) return what + " have sizes " + text_of(y.sizes()) + "; they must be [N, D]";
      if (!y.is_floating_point() || y.element_size() < 2)
        return what + " are " + c10::toString(y.scalar_type()) + "; they must be floating";
      if (y.sizes() != x.sizes() || y.scalar_type() != x.scalar_type())
        return what + " are " + c10::toString(y.scalar_type()) + text_of(y.sizes()) +
               "; the anchors are " + c10::toString(x.scalar_type()) + text_of(x.sizes());
      if (y.layout() != at::kStrided)
        return what + " are " + c10::str(y.layout()) + "; they must be dense";
      // A NaN or an infinity is in the length as well. Logits need not overflow.
      const bool in_double = y.scalar_type() == at::kDouble;
      const auto longest = [&](at::ScalarType type) {
        return y.numel() == 0 ? 0.0 : y.detach().norm(2, {1}, false, type).max().item<double>();
      };
      const double most = in_double ? 1e140 : 1e15;
      if (longest(in_double ? at::kDouble : at::kFloat) <= most) continue;
      if (!y.isfinite().all().item<bool>()) return what + " are not finite";
      return c10::str(what, " have a row of length ", longest(at::kDouble), "; it must be ", most,
                      " or less", in_double ? "" : " (1e140 in f64)");
    }
    if (of.name == "sup_con_loss" &&
        (!of.labels.defined() || of.labels.scalar_type() != at::kLong || of.labels.dim() != 1 ||
         of.labels.size(0) != x.size(0) || of.labels.device() != device_))
      return "the labels must be i64 [" + std::to_string(x.size(0)) + "] on " + device_.str();
    if (of.labels.defined() && of.labels.layout() != at::kStrided)
      return "the labels are " + c10::str(of.labels.layout()) + "; they must be dense";
    if (!of.scale.defined() || of.scale.numel() != 1) return "the scale must be one number";
    if (of.name == "siglip_loss" && (!of.bias.defined() || of.bias.numel() != 1))
      return "the bias must be one number";
    if (!(options_.label_smoothing >= 0 && options_.label_smoothing <= 1))
      return "label_smoothing is " + std::to_string(options_.label_smoothing) +
             "; it must be between 0 and 1";
    if (options_.tile_rows < 1 || options_.tile_columns < 1)
      return "tiles are " + text_of({options_.tile_rows, options_.tile_columns}) +
             "; they must have 1 or more rows and columns";
    scale_ = of.scale.item<double>();
    if (!(scale_ >= 1e-6 && scale_ <= 1e6))
      return "scale is " + std::to_string(scale_) + "; it must be between 1e-6 and 1e6";
    if (of.bias.defined()) bias_ = of.bias.item<double>();
    if (!(std::abs(bias_) <= 1e30))
      return "bias is " + std::to_string(bias_) + "; it must be between -1e30 and 1e30";
    return {};
  }

  /// The same with what torch throws, which the other ranks have to learn too.
  std::string caught_refusal(const FeatureArguments& of) {
    try {
      return refusal(of);
    } catch (const c10::Error& error) {
      return std::string("torch: ") + error.what_without_backtrace();
    } catch (const std::exception& error) {
      return std::string("torch: ") + error.what();
    }
  }

  ProcessGroup& group_;
  const FeatureLossOptions& options_;
  const c10::Device device_;
  at::ScalarType type_ = at::kFloat;
  RowLayout layout_;
  double scale_ = 1, bias_ = 0;
  bool has_gradients_ = false;
  std::array<at::Tensor, 2> all_;
};

}  // namespace detail
}  // namespace tutti::libtorch
