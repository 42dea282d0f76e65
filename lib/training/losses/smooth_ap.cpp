#include <tutti/losses/smooth_ap.hpp>

#include <numeric>

#include <fmt/format.h>

#include "group/call.hpp"
#include "losses/global_batch.hpp"
#include "losses/options.hpp"
#include "losses/parallel.hpp"
#include "losses/soft_rank.hpp"
#include "values/fail.hpp"

namespace tutti {
namespace [[gnu::visibility("default")]] losses {
namespace {

using internal::losses::GlobalBatch;
using internal::losses::in_parallel;
using internal::losses::is_valid;
using internal::losses::SoftRank;
using internal::losses::word;

/// Weights of one anchor for the gradient, from its sums A, B, D and E (soft_rank.hpp): a = B /
/// A^2, b = 1 / A, and the term of its own score, own = b E - a D. B / A is a / b.
struct Weights {
  double a = 0, b = 0, own = 0;
};
constexpr std::size_t width = sizeof(Weights) / sizeof(double);

/// Returns the anchors [first, last) of class c that `rank` computes. Parts rotate with c, so that
/// the remainder is spread over the ranks.
std::pair<std::size_t, std::size_t> share(const SoftRank& ranks, std::int64_t c, int rank,
                                          int size) {
  return ranks.share(static_cast<int>((rank + c) % size), size);
}

/// For fewer rows, another exchange takes longer than the work it saves.
constexpr std::int64_t few_rows = 1000;

RowLayout equal_parts(std::int64_t rows, int ranks) {
  std::vector<std::int64_t> counts;
  for (std::int64_t r = 0; r < ranks; ++r)
    counts.push_back(rows * (r + 1) / ranks - rows * r / ranks);
  return RowLayout(counts);
}

}  // namespace

SmoothAp::SmoothAp(const Options& options)
    : RankingLoss("smooth_ap", options.classes, options.temperature, options.ignore_index,
                  options.pool),
      options_(options) {
  if (options.threads < 1)
    internal::failf(Errc::invalid_argument, "smooth_ap: threads is {}; it must be 1 or more",
                    options.threads);
}

LossResult SmoothAp::compute(ProcessGroup* group, const Batch& batch,
                             const CallOptions& options) try {
  const double temperature = this->temperature();
  auto pool = internal::losses::GlobalBatch::collect(
      group, batch,
      {.loss = name(),
       .options =
           fmt::format("classes {}, temperature {}, reduction {}, grad_scale {}, ignore_index {}",
                       options_.classes, temperature, word(options_.reduction),
                       word(options_.grad_scale), options_.ignore_index),
       .classes = options_.classes,
       .ignore_index = options_.ignore_index,
       .needs_all = true},
      queue(), options);
  const int size = pool.ranks();
  const auto classes = static_cast<std::size_t>(options_.classes);

  // Computes this rank's part of the anchors of every class, for all ranks.
  std::vector<SoftRank> ranks;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(size));
  std::vector<Weights> mine;
  auto result = internal::losses::start_result(options_.classes);
  for (std::size_t c = 0; c < classes; ++c) {
    const auto index = static_cast<std::int64_t>(c);
    const auto& soft = ranks.emplace_back(pool.scores(c), pool.positives(c), temperature);
    if (soft.anchors() == 0 || soft.anchors() == soft.rows())
      result.status[c] =
          soft.anchors() == 0 ? ClassStatus::no_positives : ClassStatus::no_negatives;
    else if (!(pool.positive_mass(c).rows > 0))
      result.status[c] = ClassStatus::no_weight;
    if (!is_valid(result, c)) continue;
    for (int r = 0; r < size; ++r) {
      const auto [first, last] = share(soft, index, r, size);
      counts[static_cast<std::size_t>(r)] += static_cast<std::int64_t>(last - first);
    }
    const auto [first, last] = share(soft, index, pool.rank(), size);
    std::vector<SoftRank::Sums> sums(last - first);
    in_parallel(options_.threads, sums.size(), [&, begin = first](std::size_t i, std::size_t j) {
      soft.sums(begin + i, std::span(sums).subspan(i, j - i));
    });
    for (const auto& s : sums) {
      const double b = 1 / s.a;
      const double a = s.b * b * b;
      mine.push_back({a, b, b * s.e - a * s.d});
    }
  }
  const auto gathered = pool.gather_shares(
      {reinterpret_cast<const double*>(mine.data()), mine.size() * width}, width, counts);

  // Every rank now has the Weights of all anchors, and completes the gradient of its own rows.
  // `next`: by rank, the index of its next Weights in `gathered`.
  std::vector<std::size_t> next(static_cast<std::size_t>(size));
  for (std::size_t r = 1; r < next.size(); ++r)
    next[r] = next[r - 1] + static_cast<std::size_t>(counts[r - 1]);
  const double weight = internal::losses::class_weight(options_.reduction, result);
  // If the numbers of rows differ too much between ranks, the ranks compute equal parts of all rows
  // and send the results to the ranks that own the rows.
  const RowLayout owners(pool.own_of_ranks());
  const auto fair = (owners.total() + size - 1) / size;
  const bool uneven = size > 1 && owners.total() > few_rows && owners.max() > fair + fair / 20;
  const auto parts = uneven ? equal_parts(owners.total(), size) : owners;
  const auto first_row =
      uneven ? static_cast<std::size_t>(parts.offset(pool.rank())) : pool.first_own();
  const auto rows = static_cast<std::size_t>(parts[pool.rank()]);
  std::vector<double> grad(rows * classes);
  std::vector<std::uint32_t> numbers(rows);
  std::iota(numbers.begin(), numbers.end(), static_cast<std::uint32_t>(first_row));
  std::vector<SoftRank::Slopes> slopes(rows);
  for (std::size_t c = 0; c < classes; ++c) {
    if (!is_valid(result, c)) continue;
    const auto& soft = ranks[c];
    const auto anchors = soft.anchors();
    std::vector<double> a(anchors);
    std::vector<double> b(anchors);
    std::vector<double> own_part(soft.rows());
    std::vector<double> precisions(anchors);
    for (int r = 0; r < size; ++r) {
      const auto [first, last] = share(soft, static_cast<std::int64_t>(c), r, size);
      for (auto k = first; k < last; ++k) {
        const auto* from = &gathered[next[static_cast<std::size_t>(r)]++ * width];
        const double w = pool.weight(soft.row(k));
        precisions[k] = w * (from[0] / from[1]);
        a[k] = w * from[0];
        b[k] = w * from[1];
        own_part[soft.row(k)] = w * from[2];
      }
    }
    const double mass = pool.positive_mass(c).rows;
    result.per_class[c] = 1 - std::accumulate(precisions.begin(), precisions.end(), 0.0) / mass;
    result.loss += weight * result.per_class[c];
    in_parallel(options_.threads, rows, [&](std::size_t i, std::size_t j) {
      soft.slopes(a, b, std::span(numbers).subspan(i, j - i), std::span(slopes).subspan(i, j - i));
    });
    const double scale = weight * pool.scale_of(options_.grad_scale) / (mass * temperature);
    for (std::size_t i = 0; i < rows; ++i)
      grad[i * classes + c] = scale * (slopes[i].a - slopes[i].b + own_part[numbers[i]]);
  }
  if (uneven) grad = pool.return_to_owners(grad, classes, parts);
  result.grad = pool.gradient(grad);
  pool.commit();
  return result;
} catch (...) {
  internal::end_calls(group);
}

}  // namespace losses
}  // namespace tutti
