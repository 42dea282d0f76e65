#include "losses/features/feature_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

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

const void* FeatureRows::share_rows(int side) const noexcept {
  return side_[static_cast<std::size_t>(side)].share;
}

std::vector<FeatureColumns> FeatureRows::columns(int side) const {
  const auto& from = side_[static_cast<std::size_t>(side)];
  std::vector<FeatureColumns> all{{from.live, rows(), false}};
  if (queued_ != 0) all.push_back({from.of_queue, queued_, true});
  return all;
}

std::vector<double> FeatureRows::pair_products() const {
  std::vector<double> products(static_cast<std::size_t>(rows()));
  const auto dims = static_cast<std::size_t>(dims_);
  const auto multiply = [&]<typename T>(T) {
    const auto* a = static_cast<const T*>(side_[0].live);
    const auto* c = static_cast<const T*>(side_[1].live);
    for (auto& product : products)
      for (std::size_t d = 0; d < dims; ++d) product += to_double(*a++) * to_double(*c++);
  };
  in_double_ ? multiply(double{}) : multiply(float{});
  return products;
}

template void FeatureRows::unpack<float>(int side, Tensor&& gathered);
template void FeatureRows::unpack<double>(int side, Tensor&& gathered);

}  // namespace tutti::internal::losses
