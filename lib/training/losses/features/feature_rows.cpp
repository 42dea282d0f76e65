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

/// The queue would leave out rows with the smallest number.
void check_labels(const ConstTensorView& labels) {
  check_elements("labels", labels);
  const auto all = labels.values<std::int64_t>();
  const auto found = std::ranges::find(all, INT64_MIN);
  if (found != all.end())
    failf(Errc::invalid_argument, "labels[{}] is {}; labels must be greater", found - all.begin(),
          INT64_MIN);
}

}  // namespace

FeatureRows::FeatureRows(ProcessGroup* group, const FeatureBatch& batch, const FeatureRules& rules,
                         const tutti::losses::FeatureEngine& engine, FeatureQueue& queue,
                         const CallOptions& options)
    : group_(group),
      queue_(queue.rows()),
      options_(options),
      staged_{Staged(group, options), Staged(group, options)},
      sides_(rules.sides),
      dtype_(batch.anchors.dtype),
      in_double_(engine.in_double || batch.anchors.dtype == DType::f64),
      training_(batch.training),
      given_(batch.weight.has_value()) {
  auto here = batch;
  exchange(here, rules, engine);
  remember();
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
  if (queue_.options().queue != 0 && queue_.classes() != sides_ * dims_)
    failf(Errc::invalid_argument,
          "anchors are {}, but the queue was made for {} dims; they must be "
          "equal",
          to_string(anchors.shape), queue_.classes() / sides_);
  check_features("anchors", anchors, in_double_);
  if (sides_ == 2)
    check_features("candidates", candidates, in_double_);
  else
    check_labels(labels);
  queue_.check_world(rank(), ranks());
  own_ = {anchors, candidates};
  own_labels_ = labels;
}

/// Returns the rows of this call on each rank, from rows with those of the queue.
std::vector<std::int64_t> FeatureRows::live_counts(const RowLayout& layout,
                                                   std::string_view loss) const {
  std::vector<std::int64_t> live;
  for (int r = 0; r < ranks(); ++r) {
    live.push_back(layout[r] - queue_.size_of(r));
    if (live.back() < 0)
      throw gather_error(
          Errc::mismatch, *group_, loss, r,
          fmt::format("rank {} sent {} rows including its queue, but its queue has {}", r,
                      layout[r], queue_.size_of(r)));
  }
  return live;
}

void FeatureRows::exchange(FeatureBatch& batch, const FeatureRules& rules,
                           const tutti::losses::FeatureEngine& engine) {
  const auto sides = static_cast<std::size_t>(sides_);
  std::array<std::vector<std::byte>, 2> copies;
  std::vector<std::int64_t> labels;
  std::vector<double> weights;
  std::vector<ConstTensorView> arrays;
  const auto prepare = [&] {
    check(batch, engine);
    const auto& queued = queue_.own();
    const auto rows = own_[0].shape.rows() + std::ssize(queued.targets);
    for (std::size_t side = 0; side < sides; ++side) {
      arrays.emplace_back(own_[side].data, dtype_, Shape{rows, dims_});
      if (queued.size() == 0) continue;
      copies[side] = joined(static_cast<int>(side));
      arrays.back().data = copies[side].data();
    }
    if (sides_ == 1) {
      const auto* own = static_cast<const std::int64_t*>(own_labels_.data);
      labels.assign(own, own + own_labels_.shape.numel());
      labels.insert(labels.end(), queued.targets.begin(), queued.targets.end());
      arrays.emplace_back(labels);
    }
    if (!batch.weight) return;
    weights = check_weights(*batch.weight);
    weights.resize(static_cast<std::size_t>(rows));  // Those of the queue are not used.
    arrays.emplace_back(weights);
  };
  GatheredArrays all;
  if (group_ == nullptr) {
    named(rules.loss, prepare);
    all.layout = RowLayout(std::vector{arrays[0].shape.rows()});
  } else {
    const auto words = fmt::format(
        "{}{}{}{}, {}{}", rules.options, engine.in_double ? ", in double" : "",
        engine.gemm != nullptr ? ", with its own gemm" : "", batch.weight ? ", with weights" : "",
        training_ ? "training" : "evaluation", queue_.state());
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
  if (all.layout.total() > most_feature_rows)
    failf(Errc::count_overflow, "{}: {} rows; at most {} are supported", rules.loss,
          all.layout.total(), most_feature_rows);
  owners_ = RowLayout(live_counts(all.layout, rules.loss));
  queued_ = queue_.size();
  set_shares();
  // Separates the rows of the call, in rank order, from those of the queue, oldest first.
  const auto split = [&]<typename T>(std::size_t array, std::vector<T>& to, bool with_queue) {
    const auto* from =
        static_cast<const T*>(group_ == nullptr ? arrays[array].data : all.data[array].data());
    std::vector<const T*> next;
    for (int r = 0; r < ranks(); ++r) {
      next.push_back(from + all.layout.offset(r));
      to.insert(to.end(), next.back(), next.back() + owners_[r]);
      next.back() += owners_[r];
    }
    if (!with_queue) return;
    for (const auto& segment : queue_.segments()) {
      auto& at = next[static_cast<std::size_t>(segment.rank)];
      to.insert(to.end(), at, at + segment.count);
      at += segment.count;
    }
  };
  auto array = sides;
  if (sides_ == 1) split(array++, labels_, true);
  if (given_) split(array, given_weights_, false);
  set_weights();
  for (std::size_t side = 0; side < sides; ++side) {
    const auto s = static_cast<int>(side);
    auto gathered = group_ == nullptr ? Tensor() : std::move(all.data[side]);
    in_double_ ? unpack<double>(s, std::move(gathered)) : unpack<float>(s, std::move(gathered));
  }
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
  const RowLayout layout(counts);
  auto both = std::move(mine[0]);
  both.insert(both.end(), mine[1].begin(), mine[1].end());
  const ConstTensorView in(both.data(), DType::f64, {layout[rank()], columns});
  const auto gathered = all_rows(*group_, in, layout, options_);
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

/// Copies the rows that commit() adds to the queue, and reserves memory for them.
void FeatureRows::remember() {
  if (!training_ || queue_.options().queue == 0) return;
  const auto rows = own_[0].shape.rows();
  const auto kept = std::min(rows, queue_.options().queue);
  const auto skip = count_of_rows(rows - kept, dims_) * size_of(dtype_);
  const auto row = static_cast<std::size_t>(dims_) * size_of(dtype_);
  std::vector<std::byte> joint(static_cast<std::size_t>(kept) * row *
                               static_cast<std::size_t>(sides_));
  auto* to = joint.data();
  for (std::size_t i = 0; i < static_cast<std::size_t>(kept); ++i)
    for (std::size_t side = 0; side < static_cast<std::size_t>(sides_); ++side, to += row)
      std::memcpy(to, static_cast<const std::byte*>(own_[side].data) + skip + i * row, row);
  std::vector<std::int64_t> labels(static_cast<std::size_t>(kept));
  if (sides_ == 1)
    std::copy_n(static_cast<const std::int64_t*>(own_labels_.data) + (rows - kept), kept,
                labels.begin());
  fresh_ = queue_.newest({{joint.data(), dtype_, {kept, sides_ * dims_}}, labels}, INT64_MIN);
  queue_.reserve(fresh_.size(), ranks());
}

void FeatureRows::commit() noexcept {
  if (training_) queue_.enqueue(rank(), owners_.counts(), fresh_, false);
}

}  // namespace tutti::internal::losses
