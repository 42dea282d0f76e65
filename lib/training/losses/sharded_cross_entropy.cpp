#include <tutti/losses/sharded_cross_entropy.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "group/call.hpp"
#include "losses/elements.hpp"
#include "losses/options.hpp"
#include "losses/over_ranks.hpp"
#include "losses/parallel.hpp"
#include "losses/staged.hpp"
#include "losses/summed_loss.hpp"
#include "rows/metadata_exchange.hpp"
#include "values/hash.hpp"

namespace tutti {
namespace losses {
namespace {

using internal::failf;
using internal::losses::numbers_of_ranks;
using internal::losses::softplus;
using internal::losses::to_double;
using internal::losses::word;

constexpr std::string_view sharded_name = "sharded_cross_entropy";
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Adds up at most `terms` numbers from 0 to 1 in two integers. A number is rounded to a multiple
/// of 2^(-2 bits), 2^-104 for 1000 terms, so that neither order nor split changes a bit of the sum.
class FixedPointSum {
 public:
  explicit FixedPointSum(std::int64_t terms)
      : unit_(std::ldexp(
            1, 62 - static_cast<int>(std::bit_width(static_cast<std::uint64_t>(terms))))) {}
  void add(std::int64_t* sum, double number) const noexcept {
    const double scaled = number * unit_;
    const auto whole = static_cast<std::int64_t>(scaled);
    sum[0] += whole;
    sum[1] += static_cast<std::int64_t>((scaled - static_cast<double>(whole)) * unit_ + 0.5);
  }
  double value(const std::int64_t* sum) const noexcept {
    return (static_cast<double>(sum[0]) + static_cast<double>(sum[1]) / unit_) / unit_;
  }

 private:
  double unit_;
};

/// The rows of a call with this rank's classes, on the host.
struct ClassShard {
  ConstTensorView logits{};
  std::span<const std::int64_t> targets{};
  std::vector<double> weights{};
  std::size_t classes = 0;
  std::int64_t first = 0;  ///< The first class of this rank.
  std::int64_t all = 0;    ///< The number of classes on all ranks.

  std::size_t rows() const noexcept { return targets.size(); }
  /// The index of a row's target in this shard; not below `classes` if another rank has it.
  std::size_t own(std::size_t row) const noexcept {
    return static_cast<std::size_t>(targets[row] - first);
  }
};

/// Collective: checks that all ranks have the same rows, and finds the place of the shard.
/// `check_and_stage` sets the other members.
template <typename Check>
void agree_on_rows(ProcessGroup* group, std::string_view options, ClassShard& shard,
                   const Check& check_and_stage, const CallOptions& call) {
  constexpr std::size_t width = 4;
  const auto ranks = numbers_of_ranks<std::int64_t>(
      group, sharded_name, options, width,
      [&](std::span<std::int64_t> mine) {
        check_and_stage();
        internal::Hash hash;
        hash.add(shard.targets);
        mine[0] = std::ssize(shard.targets);
        mine[1] = static_cast<std::int64_t>(shard.classes);
        mine[2] = std::bit_cast<std::int64_t>(hash.value());
        for (const double w : shard.weights) hash.add(std::bit_cast<std::uint64_t>(w));
        mine[3] = std::bit_cast<std::int64_t>(hash.value());
      },
      call);
  const auto refuse = [&](std::size_t rank, const std::string& text) {
    throw internal::gather_error(Errc::mismatch, *group, sharded_name, static_cast<int>(rank),
                                 text + "; every rank has to pass the same rows");
  };
  bool same = true;
  for (std::size_t r = 0; r < ranks.size() / width; ++r) {
    const auto* of = &ranks[width * r];
    if (of[0] != ranks[0])
      refuse(r, fmt::format("rank {} has {} rows, rank 0 has {}", r, of[0], ranks[0]));
    same = same && of[2] == ranks[2] && of[3] == ranks[3];
    shard.all += of[1];
    if (group != nullptr && static_cast<int>(r) < group->rank()) shard.first += of[1];
  }
  const auto n = shard.rows();
  if (!same) {  // On every rank alike. Exchanges the rows to name one that differs.
    const auto rows = numbers_of_ranks<std::int64_t>(
        group, sharded_name, options, 2 * n,
        [&](std::span<std::int64_t> mine) {
          for (std::size_t i = 0; i < n; ++i) {
            mine[i] = shard.targets[i];
            mine[n + i] = std::bit_cast<std::int64_t>(shard.weights[i]);
          }
        },
        call);
    for (std::size_t k = 2 * n; k < rows.size(); ++k) {
      const auto i = k % (2 * n);
      if (rows[k] == rows[i]) continue;
      if (i < n)
        refuse(k / (2 * n), fmt::format("targets[{}] is {} on rank {} and {} on rank 0", i, rows[k],
                                        k / (2 * n), rows[i]));
      refuse(k / (2 * n), fmt::format("weights[{}] is {} on rank {} and {} on rank 0", i - n,
                                      std::bit_cast<double>(rows[k]), k / (2 * n),
                                      std::bit_cast<double>(rows[i])));
    }
  }
}

}  // namespace

ShardedCrossEntropy::ShardedCrossEntropy(const Options& options) : options_(options) {
  internal::losses::check_label_smoothing(sharded_name, options.label_smoothing);
  if (options.threads < 1)
    failf(Errc::invalid_argument, "{}: threads is {}; it must be 1 or more", sharded_name,
          options.threads);
}

LossResult ShardedCrossEntropy::compute(ProcessGroup* group, const ConstTensorView& logits,
                                        const ConstTensorView& targets,
                                        const std::optional<ConstTensorView>& weight,
                                        const CallOptions& call) const try {
  const auto& o = options_;
  const double e = o.label_smoothing;
  const bool smooth = e > 0;
  ClassShard shard;
  internal::losses::Staged staged(group, call);
  const auto check_and_stage = [&] {
    internal::losses::SummedBatch here{staged.logits(logits), staged.on_host("targets", targets)};
    if (weight) here.weight = staged.on_host("weights", *weight);
    shard.logits = here.logits;
    internal::losses::with_type(logits.dtype, [](auto) {});
    if (logits.shape.ndim() != 2)
      failf(Errc::invalid_argument, "logits are {}; they must be [N, C_r], this rank's classes",
            to_string(logits.shape));
    shard.classes = static_cast<std::size_t>(logits.shape.dims()[1]);
    shard.targets = internal::losses::check_targets(here.logits, here.targets);
    internal::losses::check_elements("logits", here.logits, !smooth);
    shard.weights = internal::losses::weights_of(here, Shape::vector(std::ssize(shard.targets)));
  };
  agree_on_rows(group,
                fmt::format("label_smoothing {}, ignore_index {}, reduction {}, logits {}{}", e,
                            o.ignore_index, word(o.reduction), name_of(logits.dtype),
                            weight ? ", with weights" : ""),
                shard, check_and_stage, call);
  const auto n = shard.rows();
  internal::losses::named(sharded_name, [&] {  // On every rank alike.
    for (std::size_t i = 0; i < n; ++i)
      if (shard.targets[i] != o.ignore_index &&
          (shard.targets[i] < 0 || shard.targets[i] >= shard.all))
        failf(Errc::invalid_argument,
              "targets[{}] is {}; targets are 0 to {}, the classes of all ranks, or {} to ignore",
              i, shard.targets[i], shard.all - 1, o.ignore_index);
  });
  /// Calls f(row, logits of the row, index of its target) for each row that is not ignored.
  const auto each_row = [&](const auto& f) {
    internal::losses::with_type(logits.dtype, [&]<typename T>(T) {
      const auto* z = static_cast<const T*>(shard.logits.data);
      internal::losses::in_parallel(o.threads, n, [&](std::size_t i, std::size_t last) {
        for (; i < last; ++i)
          if (shard.targets[i] != o.ignore_index)
            f(i, std::span(z + i * shard.classes, shard.classes), shard.own(i));
      });
    });
  };

  // Of each row the largest logit of the other classes, that of the target, and minus the least.
  const std::size_t tops = smooth ? 3 : 2;
  std::vector<double> most(n * tops, -infinity);
  each_row([&](std::size_t i, auto z, std::size_t own) {
    auto* top = &most[i * tops];
    for (std::size_t c = 0; c < z.size(); ++c) {
      const double value = to_double(z[c]);
      auto& to = top[c == own ? 1 : 0];
      to = std::max(to, value);
      if (smooth) top[2] = std::max(top[2], -value);
    }
  });
  internal::losses::reduce_over_ranks(group, most, ReduceOp::max, call);
  const auto range_of = [&](std::size_t i) {
    return std::max(most[i * tops], most[i * tops + 1]) + most[i * tops + 2];
  };
  internal::losses::named(sharded_name, [&] {  // On every rank alike.
    for (std::size_t i = 0; i < n; ++i) {
      if (shard.targets[i] == o.ignore_index) continue;
      if (most[i * tops + 1] == -infinity)
        failf(Errc::invalid_argument,
              "the logit of row {} is -inf for its target {}; a masked class cannot be the target",
              i, shard.targets[i]);
      if (smooth && !std::isfinite(range_of(i)))
        failf(Errc::invalid_argument,
              "the logits of row {} are {} to {}; with label smoothing their range must be finite",
              i, -most[i * tops + 2], std::max(most[i * tops], most[i * tops + 1]));
    }
  });

  // The sums over the classes of exp(z - most of the others), without the target, and with label
  // smoothing of the distances from the largest logit, as shares of a power of two.
  const FixedPointSum fixed(shard.all);
  const std::size_t width = smooth ? 4 : 2;
  std::vector<std::int64_t> sums(n * width);
  const auto exponent = [&](std::size_t i) { return std::max(std::ilogb(range_of(i)), -1000) + 1; };
  const auto exp_of = [&](double z, std::size_t i) {
    return z == -infinity ? 0.0 : std::exp(z - most[i * tops]);
  };
  each_row([&](std::size_t i, auto z, std::size_t own) {
    for (std::size_t c = 0; c < z.size(); ++c)
      if (c != own) fixed.add(&sums[i * width], exp_of(to_double(z[c]), i));
    if (!smooth) return;
    const double top = std::max(most[i * tops], most[i * tops + 1]);
    const double share = std::ldexp(1, -exponent(i));
    for (const auto value : z) fixed.add(&sums[i * width + 2], (top - to_double(value)) * share);
  });
  internal::losses::reduce_over_ranks(group, sums, ReduceOp::sum, call);

  // Every rank now computes the loss of every row: log p_y and the sum of p over the other classes
  // come from the logarithm of the odds against the target, so that small ones keep their digits.
  std::vector<double> each(n);
  std::vector<double> factors(n);  // p = factor * exp_of().
  std::vector<double> others(n);   // The sum of p over the other classes.
  double count = 0;
  const auto all = static_cast<double>(shard.all);
  for (std::size_t i = 0; i < n; ++i) {
    if (shard.targets[i] == o.ignore_index) continue;
    const auto* top = &most[i * tops];
    const double sum = fixed.value(&sums[i * width]);
    const double odds = sum > 0 ? top[0] - top[1] + std::log(sum) : -infinity;
    others[i] = internal::losses::Logistic(odds).value;
    factors[i] = sum > 0 ? others[i] / sum : 0;
    const double hard = softplus(odds);
    each[i] = (1 - e) * hard;
    if (smooth) {
      const double gaps = std::ldexp(fixed.value(&sums[i * width + 2]), exponent(i)) / all;
      each[i] += e * (gaps + (top[1] >= top[0] ? hard : std::log(sum) + softplus(-odds)));
    }
    // A row of weight 0 does not count, even if its loss is infinite.
    each[i] = shard.weights[i] == 0 ? 0 : each[i] * shard.weights[i];
    count += shard.weights[i];
  }
  const double divisor = o.reduction != Reduction::mean ? 1.0 : count > 0 ? count : infinity;
  LossResult result;
  result.loss = std::accumulate(each.begin(), each.end(), 0.0) / divisor;
  result.grad = staged.gradient([&](void* grad) {
    each_row([&]<typename T>(std::size_t i, std::span<const T> z, std::size_t own) {
      const double w = shard.weights[i] / divisor;
      auto* to = static_cast<T*>(grad) + i * shard.classes;
      for (std::size_t c = 0; c < z.size(); ++c)
        to[c] = internal::losses::from_double<T>(
            w * (c == own ? e - others[i] - e / all
                          : factors[i] * exp_of(to_double(z[c]), i) - e / all));
    });
    for (std::size_t i = 0; i < n; ++i)
      if (shard.targets[i] == o.ignore_index)
        std::memset(static_cast<std::byte*>(grad) + i * logits.row_bytes(), 0, logits.row_bytes());
  });
  if (o.reduction == Reduction::none) result.per_element = std::move(each);
  return result;
} catch (...) {
  internal::end_calls(group);
}

}  // namespace losses
}  // namespace tutti
