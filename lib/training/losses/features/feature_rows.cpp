#include "losses/features/feature_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "group/call.hpp"
#include "losses/elements.hpp"
#include "losses/features/gemm.hpp"
#include "losses/options.hpp"
#include "losses/over_ranks.hpp"
#include "losses/parallel.hpp"
#include "rows/gather_arrays.hpp"
#include "values/fail.hpp"

namespace tutti::internal::losses {
namespace {

constexpr std::int64_t most_feature_rows = INT32_MAX;

/// Checks that elements are finite, and the sums of squares.
void check_features(std::string_view what, const ConstTensorView& rows, bool in_double) {
  if (rows.shape.numel() == 0) return;
  if (rows.data == nullptr) failf(Errc::invalid_argument, "{} are null", what);
  const double most = most_squares(in_double);
  with_type(rows.dtype, [&]<typename T>(T) {
    const auto* row = static_cast<const T*>(rows.data);
    const auto dims = rows.shape.dims()[1];
    for (std::int64_t i = 0; i < rows.shape.rows(); ++i, row += dims) {
      double squares = 0;
      for (std::int64_t d = 0; d < dims; ++d) squares += to_double(row[d]) * to_double(row[d]);
      if (squares <= most) continue;
      for (std::int64_t d = 0; d < dims; ++d)
        if (!std::isfinite(to_double(row[d])))
          failf(Errc::invalid_argument, "{}[{}, {}] is {}; {} must be finite", what, i, d,
                to_double(row[d]), what);
      failf(Errc::invalid_argument,
            "the sum of the squares of {}[{}] is {}; it must be {} or less{}", what, i, squares,
            most, in_double ? "" : " (1e280 with in_double)");
    }
  });
}

}  // namespace

FeatureRows::FeatureRows(ProcessGroup* group, const FeatureBatch& batch, const FeatureRules& rules,
                         const tutti::losses::FeatureEngine& engine, const CallOptions& options)
    : group_(group),
      options_(options),
      staged_{Staged(group, options), Staged(group, options)},
      sides_(rules.sides),
      dtype_(batch.anchors.dtype),
      in_double_(engine.in_double || batch.anchors.dtype == DType::f64),
      given_(batch.weight.has_value()) {
  auto here = batch;
  exchange(here, rules, engine);
}

/// Stages and checks this rank's arrays.
void FeatureRows::check(FeatureBatch& batch, const tutti::losses::FeatureEngine& engine) {
  batch.anchors = staged_[0].logits(batch.anchors, "anchors");
  if (sides_ == 2)
    batch.candidates = staged_[1].logits(batch.candidates, "candidates");
  else
    batch.labels = staged_[0].on_host("labels", batch.labels);
  if (batch.weight) batch.weight = staged_[0].on_host("weights", *batch.weight);
  if (engine.gemm == nullptr && eigen_product() == nullptr)
    fail(Errc::unsupported,
         "this library was built without Eigen, which multiplies the matrices: set gemm to the "
         "function of a BLAS, or build with Eigen (docs/dependencies.md)");
  if (sides_ == 2 && batch.labels.shape.numel() != 0)
    failf(Errc::invalid_argument,
          "labels are {} {}; this loss has candidates instead, and SupCon has labels",
          name_of(batch.labels.dtype), to_string(batch.labels.shape));
  if (sides_ == 1 && batch.candidates.shape.numel() != 0)
    failf(Errc::invalid_argument,
          "candidates are {} {}; this loss has labels instead, and Clip and SigLip have candidates",
          name_of(batch.candidates.dtype), to_string(batch.candidates.shape));
  const auto& anchors = batch.anchors;
  if (!has_gradient(anchors.dtype))
    failf(Errc::invalid_argument, "anchors are {}; they must be f16, bf16, f32 or f64",
          name_of(anchors.dtype));
  if (anchors.shape.ndim() != 2 || anchors.shape.dims()[1] < 1)
    failf(Errc::invalid_argument, "anchors are {}; they must be [N, D]", to_string(anchors.shape));
  const auto rows = anchors.shape.rows();
  dims_ = anchors.shape.dims()[1];
  if (rows > most_feature_rows)
    failf(Errc::count_overflow, "{} rows; at most {} are supported", rows, most_feature_rows);
  const auto& candidates = batch.candidates;
  if (sides_ == 2 && (candidates.dtype != dtype_ || !(candidates.shape == anchors.shape)))
    failf(Errc::invalid_argument, "anchors are {} {}, candidates {} {}; they must be alike",
          name_of(dtype_), to_string(anchors.shape), name_of(candidates.dtype),
          to_string(candidates.shape));
  const auto& labels = batch.labels;
  if (sides_ == 1 && (labels.dtype != DType::i64 || !(labels.shape == Shape::vector(rows))))
    failf(Errc::invalid_argument, "labels are {} {}, anchors {}; labels must be i64 [{}]",
          name_of(labels.dtype), to_string(labels.shape), to_string(anchors.shape), rows);
  if (batch.weight && !(batch.weight->shape == Shape::vector(rows)))
    failf(Errc::invalid_argument, "weights are {}, anchors {}; weights must be [{}]",
          to_string(batch.weight->shape), to_string(anchors.shape), rows);
  check_features("anchors", anchors, in_double_);
  if (sides_ == 2)
    check_features("candidates", candidates, in_double_);
  else
    check_elements("labels", labels);
  own_ = {anchors, candidates};
  own_labels_ = labels;
}

void FeatureRows::exchange(FeatureBatch& batch, const FeatureRules& rules,
                           const tutti::losses::FeatureEngine& engine) {
  const auto sides = static_cast<std::size_t>(sides_);
  std::vector<double> weights;
  std::vector<ConstTensorView> arrays;
  const auto prepare = [&] {
    check(batch, engine);
    for (std::size_t side = 0; side < sides; ++side)
      arrays.emplace_back(own_[side].data, dtype_, own_[side].shape);
    if (sides_ == 1) arrays.push_back(own_labels_);
    if (!batch.weight) return;
    weights = check_weights(*batch.weight);
    arrays.emplace_back(weights);
  };
  GatheredArrays all;
  if (group_ == nullptr) {
    named(rules.loss, prepare);
    all.rows = RowLayout(std::vector{arrays[0].shape.rows()});
  } else {
    const auto words = fmt::format("{}{}{}{}", rules.options, engine.in_double ? ", in double" : "",
                                   engine.gemm != nullptr ? ", with its own gemm" : "",
                                   batch.weight ? ", with weights" : "");
    all = gather_host_arrays(*group_,
                             {.caller = rules.loss,
                              .small = GatherRequest::most,
                              .check =
                                  [&](GatherRequest& request) {
                                    prepare();
                                    request.arrays = arrays;
                                  },
                              .agree = words},
                             options_);
    options_.name = {};
  }
  if (all.rows.total() > most_feature_rows)
    failf(Errc::count_overflow, "{}: {} rows; at most {} are supported", rules.loss,
          all.rows.total(), most_feature_rows);
  owners_ = all.rows;
  set_shares();
  const auto copy = [&]<typename T>(std::size_t array, std::vector<T>& to) {
    const ConstTensorView from = group_ == nullptr ? arrays[array] : all.data[array].view();
    to.assign(from.values<T>().begin(), from.values<T>().end());
  };
  if (sides_ == 1) copy(sides, labels_);
  if (given_) copy(arrays.size() - 1, given_weights_);
  set_weights();
  for (std::size_t side = 0; side < sides; ++side) {
    const auto s = static_cast<int>(side);
    auto gathered = group_ == nullptr ? Tensor() : std::move(all.data[side]);
    in_double_ ? unpack<double>(s, std::move(gathered)) : unpack<float>(s, std::move(gathered));
  }
}

/// `gathered` is empty in one process, whose rows are own_.
template <typename T>
void FeatureRows::unpack(int side, Tensor&& gathered) {
  auto& to = side_[static_cast<std::size_t>(side)];
  to.gathered = std::move(gathered);
  const ConstTensorView from =
      group_ == nullptr ? own_[static_cast<std::size_t>(side)] : std::as_const(to.gathered).view();
  to.rows = from.data;
  if (dtype_ == tutti::dtype_of<T>) return;
  to.converted = AlignedArray<std::byte>(count_of_rows(rows(), dims_) * sizeof(T));
  auto* out = reinterpret_cast<T*>(to.converted.data());
  with_type(dtype_, [&]<typename In>(In) {
    const auto* in = static_cast<const In*>(from.data);
    for (std::int64_t i = 0; i < from.shape.numel(); ++i) out[i] = static_cast<T>(to_double(in[i]));
  });
  to.gathered = {};
  to.rows = to.converted.data();
}

std::vector<double> FeatureRows::pair_products() const {
  std::vector<double> products(static_cast<std::size_t>(rows()));
  const auto dims = static_cast<std::size_t>(dims_);
  const auto multiply = [&]<typename T>(T) {
    const auto* a = static_cast<const T*>(features(0));
    const auto* c = static_cast<const T*>(features(1));
    for (auto& product : products)
      for (std::size_t d = 0; d < dims; ++d) product += to_double(*a++) * to_double(*c++);
  };
  in_double_ ? multiply(double{}) : multiply(float{});
  return products;
}

/// The sides get complementary remainders of the division of the blocks by the ranks.
void FeatureRows::set_shares() {
  const auto blocks = (rows() + block_rows - 1) / block_rows;
  for (std::size_t side = 0; side < 2; ++side) {
    std::vector<std::int64_t> counts;
    std::int64_t before = 0;
    for (int r = 0; r < ranks(); ++r) {
      const auto last = (blocks * (r + 1) + (side == 0 ? 0 : ranks() - 1)) / ranks();
      const auto end = std::min(rows(), last * block_rows);
      counts.push_back(end - before);
      before = end;
    }
    share_[side] = RowLayout(counts);
  }
}

void FeatureRows::set_weights(const std::function<bool(std::size_t row)>& counts) {
  weights_.assign(static_cast<std::size_t>(rows()), 1);
  if (given_) weights_ = given_weights_;
  for (std::size_t i = 0; i < weights_.size(); ++i)
    if (counts && !counts(i)) weights_[i] = 0;
  const double most = weights_.empty() ? 0 : *std::ranges::max_element(weights_);
  if (most > 0)
    for (double& weight : weights_) weight /= most;
  mass_ = std::accumulate(weights_.begin(), weights_.end(), 0.0);
}

BySide FeatureRows::gather(BySide&& mine, std::size_t width) const {
  if (ranks() == 1) return std::move(mine);
  const auto columns = static_cast<std::int64_t>(width);
  std::vector<std::int64_t> counts;
  for (int r = 0; r < ranks(); ++r) counts.push_back(share(0)[r] + (sides_ == 2 ? share(1)[r] : 0));
  const RowLayout rows_of_ranks(counts);
  auto both = std::move(mine[0]);
  both.insert(both.end(), mine[1].begin(), mine[1].end());
  const ConstTensorView in(both.data(), DType::f64, {rows_of_ranks[rank()], columns});
  const auto gathered = all_rows(*group_, in, rows_of_ranks, options_);
  const auto all = gathered.values<double>();
  BySide result;
  for (int side = 0; side < sides_; ++side)
    result[static_cast<std::size_t>(side)].reserve(static_cast<std::size_t>(rows()) * width);
  auto from = all.begin();
  for (int r = 0; r < ranks(); ++r)
    for (int side = 0; side < sides_; ++side) {
      const auto last = from + share(side)[r] * columns;
      auto& to = result[static_cast<std::size_t>(side)];
      to.insert(to.end(), from, last);
      from = last;
    }
  return result;
}

Tensor FeatureRows::gradient(int side, Tensor&& of_share) {
  const auto s = static_cast<std::size_t>(side);
  const auto& parts = share(side);
  auto own = std::move(of_share);
  if (!(parts == owners_))  // On every rank alike, also on one without rows.
    own = move_rows(*group_, own, parts, owners_, options_);
  if (staged_[s].is_host()) return own;
  return staged_[s].gradient([&](void* to) { std::memcpy(to, own.data(), own.bytes()); });
}

double FeatureRows::scale_of(GradScale scale) const {
  return losses::scale_of(scale, group_);
}

}  // namespace tutti::internal::losses
