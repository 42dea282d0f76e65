#include "losses/features/feature_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "group/call.hpp"
#include "losses/elements.hpp"
#include "values/fail.hpp"

// The features that a rank computes with: its share, and the columns that it compares them with.

namespace tutti::internal::losses {
namespace {

template <typename To>
void convert(const ConstTensorView& from, To* to) {
  with_type(from.dtype, [&]<typename T>(T) {
    const auto* in = static_cast<const T*>(from.data);
    for (std::int64_t i = 0; i < from.shape.numel(); ++i) to[i] = static_cast<To>(to_double(in[i]));
  });
}

}  // namespace

/// Returns this rank's rows of one side and then its rows of the queue, in the features' dtype.
/// @throws Error if a queued row, whose call may have had another dtype, does not fit.
std::vector<std::byte> FeatureRows::joined(int side) const {
  const auto s = static_cast<std::size_t>(side);
  const auto& queued = queue_.own();
  const auto dims = static_cast<std::size_t>(dims_);
  std::vector<std::byte> all(own_[s].bytes() + queued.size() * dims * size_of(dtype_));
  if (own_[s].bytes() != 0) std::memcpy(all.data(), own_[s].data, own_[s].bytes());
  with_type(dtype_, [&]<typename T>(T) {
    auto* to = all.data() + own_[s].bytes();
    for (std::size_t i = 0; i < queued.size(); ++i) {
      double squares = 0;
      for (std::size_t d = 0; d < dims; ++d, to += sizeof(T)) {
        const double feature = queued.scores[(i * static_cast<std::size_t>(sides_) + s) * dims + d];
        const T value = from_double<T>(feature);
        if (!std::isfinite(to_double(value)))
          failf(Errc::invalid_argument,
                "a queued feature is {}, which does not fit in the features' dtype {}: call "
                "reset_queue() before the dtype changes",
                feature, name_of(dtype_));
        squares += to_double(value) * to_double(value);
        std::memcpy(to, &value, sizeof value);
      }
      if (squares > most_squares(in_double_))
        failf(Errc::invalid_argument,
              "the sum of the squares of a queued row is {}; it must be {} or less: call "
              "reset_queue() before the dtype or in_double changes",
              squares, most_squares(in_double_));
    }
  });
  return all;
}

/// Sets the features of one side. Collective if columns arrive in rounds.
void FeatureRows::set_features(int side, Tensor&& gathered) {
  if (streams_)
    in_double_ ? take_share<double>(side) : take_share<float>(side);
  else
    in_double_ ? unpack<double>(side, std::move(gathered))
               : unpack<float>(side, std::move(gathered));
}

/// `gathered` holds each rank's rows of the call and then of its queue; it is empty in one process,
/// whose rows are own_ and those of the queue.
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
            options_);
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
            options_);
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
            options_);
  return all;
}

}  // namespace tutti::internal::losses
