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

std::size_t count_of_rows(std::int64_t rows, std::int64_t dims) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(dims);
}

/// Checks that elements are finite and that no product of two rows can overflow.
void check_features(std::string_view what, const ConstTensorView& rows, bool in_double) {
  if (rows.shape.numel() == 0) return;
  if (rows.data == nullptr) failf(Errc::invalid_argument, "{} are null", what);
  const double most = in_double ? 1e300 : 1e30;
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
            most, in_double ? "" : " (1e300 with in_double)");
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

template <typename To>
void convert(const ConstTensorView& from, To* to) {
  with_type(from.dtype, [&]<typename T>(T) {
    const auto* in = static_cast<const T*>(from.data);
    for (std::int64_t i = 0; i < from.shape.numel(); ++i) to[i] = static_cast<To>(to_double(in[i]));
  });
}

/// Returns the rows that part `r` of layout `a` shares with [first, last).
std::int64_t overlap(const RowLayout& a, int r, std::int64_t first, std::int64_t last) {
  return std::max<std::int64_t>(0,
                                std::min(a.offset(r) + a[r], last) - std::max(a.offset(r), first));
}

/// The rows that rank `rank` moves to or from each rank, from parts of `mine` to parts of `theirs`.
std::vector<std::int64_t> overlaps(const RowLayout& mine, int rank, const RowLayout& theirs) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < theirs.ranks(); ++r)
    counts.push_back(overlap(theirs, r, mine.offset(rank), mine.offset(rank) + mine[rank]));
  return counts;
}

}  // namespace

FeatureRows::FeatureRows(ProcessGroup* group, const FeatureBatch& batch, const FeatureRules& rules,
                         const tutti::losses::FeatureEngine& engine, FeatureQueue& queue,
                         const CallOptions& call)
    : group_(group),
      queue_(queue.rows()),
      call_(call),
      staged_{Staged(group, call), Staged(group, call)},
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

/// Returns this rank's rows of one side and then its rows of the queue, in the features' dtype.
std::vector<std::byte> FeatureRows::joined(int side) const {
  const auto s = static_cast<std::size_t>(side);
  const auto& queued = queue_.own();
  const auto dims = static_cast<std::size_t>(dims_);
  std::vector<std::byte> all(own_[s].bytes() + queued.size() * dims * size_of(dtype_));
  if (own_[s].bytes() != 0) std::memcpy(all.data(), own_[s].data, own_[s].bytes());
  with_type(dtype_, [&]<typename T>(T) {
    auto* to = all.data() + own_[s].bytes();
    for (std::size_t i = 0; i < queued.size(); ++i)
      for (std::size_t d = 0; d < dims; ++d, to += sizeof(T)) {
        const double feature = queued.scores[(i * static_cast<std::size_t>(sides_) + s) * dims + d];
        const T value = from_double<T>(feature);
        if (!std::isfinite(to_double(value)))
          failf(Errc::invalid_argument,
                "a queued feature is {}, which does not fit in the features' dtype {}: call "
                "reset_queue() before the dtype changes",
                feature, name_of(dtype_));
        std::memcpy(to, &value, sizeof value);
      }
  });
  return all;
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
    const auto options =
        fmt::format("{}{}{}{}{}, {}{}", rules.options, engine.in_double ? ", in double" : "",
                    engine.gemm != nullptr ? ", with its own gemm" : "",
                    engine.max_gathered_bytes != 0
                        ? fmt::format(", max_gathered_bytes {}", engine.max_gathered_bytes)
                        : "",
                    batch.weight ? ", with weights" : "", training_ ? "training" : "evaluation",
                    queue_.state());
    const bool limited = engine.max_gathered_bytes != 0;
    all = gather_host_arrays(*group_,
                             {.caller = rules.loss,
                              .small = limited ? 0 : GatherRequest::most,
                              .only_small = limited,
                              .check =
                                  [&](GatherRequest& request) {
                                    prepare();
                                    request.arrays = arrays;
                                  },
                              .agree = options},
                             call_);
    call_.name = {};
  }
  if (all.layout.total() > most_feature_rows)
    failf(Errc::count_overflow, "{}: {} rows; at most {} are supported", rules.loss,
          all.layout.total(), most_feature_rows);
  owners_ = RowLayout(live_counts(all.layout, rules.loss));
  queued_ = queue_.size();
  set_shares();

  const auto bytes = static_cast<std::uint64_t>(all.layout.total()) *
                     static_cast<std::uint64_t>(dims_ * sides_) * (in_double_ ? 8 : 4);
  const auto limit = static_cast<std::uint64_t>(engine.max_gathered_bytes);
  streams_ = ranks() > 1 && limit != 0 && bytes > limit;
  if (group_ != nullptr && all.data.empty()) {
    const std::span wanted = std::span(arrays).subspan(streams_ ? sides : 0);
    if (streams_) all.data.resize(sides);
    for (const auto& array : wanted) {
      auto& to = all.data.emplace_back(host_memory(), array.shape.with_rows(all.layout.total()),
                                       array.dtype);
      host_call(*group_,
                {.kind = Operation::all_gather, .in = array, .out = to, .rows = all.layout}, call_,
                {}, rules.loss);
    }
  }
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
  std::vector<double> every;
  if (given_) split(array, every, false);
  set_weights(every);
  if (streams_) {
    chunk_ = std::max<std::int64_t>(block_columns, static_cast<std::int64_t>(limit) /
                                                       (dims_ * sides_ * (in_double_ ? 8 : 4)) /
                                                       block_columns * block_columns);
    const auto rounds_of = [&](std::int64_t rows) { return (rows + chunk_ - 1) / chunk_; };
    rounds_ = rounds_of(rows()) + rounds_of(queued_);
  }
  for (std::size_t side = 0; side < sides; ++side) {
    const auto s = static_cast<int>(side);
    if (streams_)
      in_double_ ? take_share<double>(s) : take_share<float>(s);
    else if (group_ == nullptr)
      in_double_ ? unpack<double>(s, {}) : unpack<float>(s, {});
    else
      in_double_ ? unpack<double>(s, std::move(all.data[side]))
                 : unpack<float>(s, std::move(all.data[side]));
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

void FeatureRows::set_weights(std::span<const double> all) {
  const auto rows = static_cast<std::size_t>(this->rows());
  weights_.assign(rows, 1);
  if (given_) {
    const double most = rows == 0 ? 0 : *std::ranges::max_element(all);
    for (std::size_t i = 0; i < rows; ++i) weights_[i] = most > 0 ? all[i] / most : 0;
  }
  mass_ = std::accumulate(weights_.begin(), weights_.end(), 0.0);
}

/// Sets the features of one side. `gathered` holds each rank's rows of the call and then of its
/// queue; it is empty in one process, whose rows are own_ and those of the queue.
template <typename T>
void FeatureRows::unpack(int side, Tensor&& gathered) {
  const auto s = static_cast<std::size_t>(side);
  auto& to = side_[s];
  to.gathered = std::move(gathered);
  const bool as_is = dtype_ == (in_double_ ? DType::f64 : DType::f32);
  std::vector<std::byte> copy;
  if (group_ == nullptr && queued_ != 0) copy = joined(side);
  const auto* from = static_cast<const std::byte*>(group_ != nullptr ? to.gathered.data()
                                                   : queued_ != 0    ? copy.data()
                                                                     : own_[s].data);
  const auto size = size_of(dtype_) * static_cast<std::size_t>(dims_);
  if (as_is && queued_ == 0) {
    to.live = from;
  } else {
    to.converted = AlignedArray<std::byte>(count_of_rows(rows(), dims_) * sizeof(T));
    to.queue = AlignedArray<std::byte>(count_of_rows(queued_, dims_) * sizeof(T));
    auto* live = reinterpret_cast<T*>(to.converted.data());
    auto* queued = reinterpret_cast<T*>(to.queue.data());
    const auto take = [&](T*& out, const std::byte*& in, std::int64_t count) {
      convert(ConstTensorView(in, dtype_, {count, dims_}), out);
      in += static_cast<std::size_t>(count) * size;
      out += count * dims_;
    };
    std::vector<const std::byte*> next;
    for (int r = 0; r < ranks(); ++r) {
      take(live, from, owners_[r]);
      next.push_back(from);
      from += static_cast<std::size_t>(queue_.size_of(r)) * size;
    }
    for (const auto& segment : queue_.segments())
      take(queued, next[static_cast<std::size_t>(segment.rank)], segment.count);
    to.gathered = {};
    to.live = to.converted.data();
    to.of_queue = to.queue.data();
  }
  to.share = static_cast<const T*>(to.live) + share(side).offset(rank()) * dims_;
}

/// Collective. Gets the features of this rank's share from their owners.
template <typename T>
void FeatureRows::take_share(int side) {
  const auto s = static_cast<std::size_t>(side);
  auto& to = side_[s];
  const auto count = share(side)[rank()];
  Tensor rows(host_memory(), {count, dims_}, dtype_);
  host_call(*group_,
            {.kind = Operation::all_to_all,
             .in = own_[s],
             .out = rows,
             .rows = overlaps(share(side), rank(), owners_),
             .send_rows = overlaps(owners_, rank(), share(side))},
            call_);
  to.converted = AlignedArray<std::byte>(count_of_rows(count, dims_) * sizeof(T));
  convert(rows.view(), reinterpret_cast<T*>(to.converted.data()));
  to.share = to.converted.data();
  to.chunk = AlignedArray<std::byte>(count_of_rows(chunk_, dims_) * sizeof(T));
}

const void* FeatureRows::share_rows(int side) const noexcept {
  return side_[static_cast<std::size_t>(side)].share;
}

std::vector<FeatureColumns> FeatureRows::columns(int side, std::int64_t round) {
  if (streams_)
    return in_double_ ? next_columns<double>(side, round) : next_columns<float>(side, round);
  const auto& from = side_[static_cast<std::size_t>(side)];
  std::vector<FeatureColumns> all{{from.live, 0, rows(), false}};
  if (queued_ != 0) all.push_back({from.of_queue, 0, queued_, true});
  return all;
}

/// Collective. Gathers the rows of one round.
template <typename T>
std::vector<FeatureColumns> FeatureRows::next_columns(int side, std::int64_t round) {
  const auto s = static_cast<std::size_t>(side);
  const auto live_rounds = (rows() + chunk_ - 1) / chunk_;
  const bool queued = round >= live_rounds;
  const auto first = (queued ? round - live_rounds : round) * chunk_;
  const auto last = std::min(first + chunk_, queued ? queued_ : rows());
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks()));
  // Segments of the queue in this round: they arrive by rank.
  struct Part {
    int rank;
    std::int64_t first, count;
  };
  std::vector<Part> parts;
  std::vector<std::byte> copy;
  ConstTensorView mine(nullptr, dtype_, {0, dims_});
  if (!queued) {
    for (int r = 0; r < ranks(); ++r)
      counts[static_cast<std::size_t>(r)] = overlap(owners_, r, first, last);
    const auto count = counts[static_cast<std::size_t>(rank())];
    const auto skip = std::max<std::int64_t>(0, first - owners_.offset(rank()));
    mine = {static_cast<const std::byte*>(own_[s].data) +
                (count == 0 ? 0 : count_of_rows(skip, dims_) * size_of(dtype_)),
            dtype_,
            {count, dims_}};
  } else {
    std::int64_t number = 0;
    std::int64_t own = 0;
    std::int64_t own_first = -1;
    for (const auto& segment : queue_.segments()) {
      const auto from = std::max(first, number);
      const auto until = std::min(last, number + segment.count);
      if (from < until) {
        auto& count = counts[static_cast<std::size_t>(segment.rank)];
        parts.push_back({segment.rank, count, until - from});
        count += until - from;
        if (segment.rank == rank() && own_first < 0) own_first = own + from - number;
      }
      number += segment.count;
      if (segment.rank == rank()) own += segment.count;
    }
    const auto count = counts[static_cast<std::size_t>(rank())];
    copy = joined(side);
    mine = {copy.data() +
                count_of_rows(own_[s].shape.rows() + std::max<std::int64_t>(own_first, 0), dims_) *
                    size_of(dtype_),
            dtype_,
            {count, dims_}};
  }
  const RowLayout layout(counts);
  Tensor rows(host_memory(), {layout.total(), dims_}, dtype_);
  host_call(*group_, {.kind = Operation::all_gather, .in = mine, .out = rows, .rows = layout},
            call_);
  auto* to = reinterpret_cast<T*>(side_[s].chunk.data());
  const auto* from = static_cast<const std::byte*>(rows.data());
  if (!queued) convert(rows.view(), to);
  for (const auto& part : parts) {
    const auto at = count_of_rows(layout.offset(part.rank) + part.first, dims_) * size_of(dtype_);
    convert(ConstTensorView(from + at, dtype_, {part.count, dims_}), to);
    to += part.count * dims_;
  }
  return {{side_[s].chunk.data(), first, last - first, queued}};
}

std::vector<double> FeatureRows::pair_products() {
  // In one process and where all rows are here, every rank computes all products.
  const auto count = streams_ ? own_[0].shape.rows() : rows();
  std::vector<double> products(static_cast<std::size_t>(count));
  const auto dims = static_cast<std::size_t>(dims_);
  const auto multiply = [&]<typename T>(const void* anchors, const void* candidates, T) {
    const auto* a = static_cast<const T*>(anchors);
    const auto* c = static_cast<const T*>(candidates);
    for (auto& product : products)
      for (std::size_t d = 0; d < dims; ++d) product += to_double(*a++) * to_double(*c++);
  };
  if (!streams_) {
    in_double_ ? multiply(side_[0].live, side_[1].live, double{})
               : multiply(side_[0].live, side_[1].live, float{});
    return products;
  }
  with_type(dtype_, [&]<typename T>(T zero) { multiply(own_[0].data, own_[1].data, zero); });
  std::vector<double> all(static_cast<std::size_t>(rows()));
  host_call(*group_,
            {.kind = Operation::all_gather,
             .in = ConstTensorView(products),
             .out = TensorView(all),
             .rows = owners_},
            call_);
  return all;
}

BySide FeatureRows::gather(const BySide& mine, std::size_t width) const {
  if (ranks() == 1) return mine;
  const auto columns = static_cast<std::int64_t>(width);
  std::vector<std::int64_t> counts;
  for (int r = 0; r < ranks(); ++r) counts.push_back(share(0)[r] + (sides_ == 2 ? share(1)[r] : 0));
  const RowLayout layout(counts);
  auto both = mine[0];
  both.insert(both.end(), mine[1].begin(), mine[1].end());
  std::vector<double> all(static_cast<std::size_t>(layout.total()) * width);
  const ConstTensorView in(both.data(), DType::f64, {layout[rank()], columns});
  const TensorView out(all.data(), DType::f64, {layout.total(), columns});
  host_call(*group_, {.kind = Operation::all_gather, .in = in, .out = out, .rows = layout}, call_);
  BySide result;
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
  const bool here = parts == owners_;
  auto& staged = staged_[s];
  if (here && staged.is_host()) return std::move(of_share);
  return staged.gradient([&](void* to) {
    if (here) {
      if (of_share.bytes() != 0) std::memcpy(to, of_share.data(), of_share.bytes());
      return;
    }
    host_call(*group_,
              {.kind = Operation::all_to_all,
               .in = of_share,
               .out = {to, dtype_, {owners_[rank()], dims_}},
               .rows = overlaps(owners_, rank(), parts),
               .send_rows = overlaps(parts, rank(), owners_)},
              call_);
  });
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
