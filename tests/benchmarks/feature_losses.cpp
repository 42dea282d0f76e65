#include <ctime>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <tutti/group_options.hpp>
#include <tutti/losses/clip.hpp>
#include <tutti/losses/siglip.hpp>
#include <tutti/losses/sup_con.hpp>
#include <tutti/store/store.hpp>

#include "losses/features/feature_kernels.hpp"
#include "losses/features/feature_rows.hpp"
#include "losses/features/gemm.hpp"

// usage: feature_losses [rows] [repetitions]
//
// Times the losses over features in f32, value and gradients, beside their parts, in one run:
// "gemm" is the time of the same products of blocks alone, "large" that of as many flops in large
// products, and "exp" that of the same number of exponentials of products in the cache. "ratio" is
// loss / (gemm + exp). Then the time with two ranks, which are threads of this process, over the
// backend local. Times are those of the thread's processor (of the rank that takes longer), so that
// other programs disturb them little; "wall" is the time by the clock, one process divided by two
// ranks. Each number is the median of the repetitions, which take turns.

namespace {

using namespace tutti::losses;
namespace inner = tutti::internal::losses;
using Clock = std::chrono::steady_clock;

double wall_seconds(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds(const std::function<void()>& work) {
  const auto begin = thread_seconds();
  work();
  return thread_seconds() - begin;
}

double median(std::vector<double> times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}

struct Features {
  std::int64_t rows, dims;
  std::vector<float> anchors, candidates;
  std::vector<std::int64_t> labels;

  Features(std::int64_t n, std::int64_t d) : rows(n), dims(d) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(d)));
    for (auto* side : {&anchors, &candidates})
      for (std::int64_t i = 0; i < n * d; ++i) side->push_back(normal(random));
    for (std::int64_t i = 0; i < n; ++i) labels.push_back(i / 2);
  }
  FeatureBatch part(int rank, int ranks, bool labelled) const {
    const auto first = rows * rank / ranks;
    const auto count = rows * (rank + 1) / ranks - first;
    const auto view_of = [&](const std::vector<float>& all) {
      return tutti::ConstTensorView(all.data() + first * dims, tutti::DType::f32, {count, dims});
    };
    FeatureBatch batch;
    batch.anchors = view_of(anchors);
    if (labelled)
      batch.labels = std::span(labels).subspan(static_cast<std::size_t>(first),
                                               static_cast<std::size_t>(count));
    else
      batch.candidates = view_of(candidates);
    return batch;
  }
};

/// The products of one pass over all blocks: products of rows with columns `logits` times, of
/// weights with features `gradients` times.
void multiply_blocks(const Features& f, int logits, int gradients) {
  const inner::AlignedArray<float> block(128 * 512);
  const inner::AlignedArray<float> out(static_cast<std::size_t>(128 * f.dims));
  std::fill_n(block.data(), 128 * 512, 1e-3F);
  for (std::int64_t row = 0; row < f.rows; row += 128)
    for (std::int64_t column = 0; column < f.rows; column += 512) {
      const auto m = std::min<std::int64_t>(128, f.rows - row);
      const auto n = std::min<std::int64_t>(512, f.rows - column);
      for (int i = 0; i < logits; ++i)
        inner::eigen_product()({.b_transposed = true,
                                .m = m,
                                .n = n,
                                .k = f.dims,
                                .a = f.anchors.data() + row * f.dims,
                                .b = f.candidates.data() + column * f.dims,
                                .c = block.data(),
                                .a_stride = f.dims,
                                .b_stride = f.dims,
                                .c_stride = 512});
      for (int i = 0; i < gradients; ++i)
        inner::eigen_product()({.m = m,
                                .n = f.dims,
                                .k = n,
                                .a = block.data(),
                                .b = f.candidates.data() + column * f.dims,
                                .c = out.data(),
                                .a_stride = 512,
                                .b_stride = f.dims,
                                .c_stride = f.dims});
    }
}

/// The same number of products as large ones: all rows with 4096 columns at a time.
void multiply_large(const Features& f, int logits, int gradients) {
  std::vector<float> block(static_cast<std::size_t>(f.rows) * 4096, 1e-3F);
  std::vector<float> out(static_cast<std::size_t>(f.rows * f.dims));
  for (std::int64_t column = 0; column < f.rows; column += 4096) {
    const auto n = std::min<std::int64_t>(4096, f.rows - column);
    for (int i = 0; i < logits; ++i)
      inner::eigen_product()({.b_transposed = true,
                              .m = f.rows,
                              .n = n,
                              .k = f.dims,
                              .a = f.anchors.data(),
                              .b = f.candidates.data() + column * f.dims,
                              .c = block.data(),
                              .a_stride = f.dims,
                              .b_stride = f.dims,
                              .c_stride = 4096});
    for (int i = 0; i < gradients; ++i)
      inner::eigen_product()({.m = f.rows,
                              .n = f.dims,
                              .k = n,
                              .a = block.data(),
                              .b = f.candidates.data() + column * f.dims,
                              .c = out.data(),
                              .a_stride = 4096,
                              .b_stride = f.dims,
                              .c_stride = f.dims});
  }
}

/// `each` exponentials for every pair.
void exponentiate(const Features& f, int each) {
  const inner::AlignedArray<float> block(128 * 512);
  const std::vector<float> centers(128, 1);
  const std::vector<float> weights(128, 1);
  std::fill_n(block.data(), 128 * 512, 0.5F);
  const auto blocks = static_cast<std::int64_t>(each) * f.rows * f.rows / (128 * 512);
  for (std::int64_t i = 0; i < blocks; ++i)
    inner::feature_kernels<float>().softmax(
        {block.data(), 128, 512, 512},
        {.scale = 1e-3F, .row_center = centers.data(), .row_weight = weights.data()});
}

struct Case {
  std::string name;
  std::function<std::unique_ptr<FeatureLoss>()> make;
  int logits, gradients, exponentials;
  bool labelled;
};

struct RanksTime {
  double processor, wall;
};

class TwoRanks {
 public:
  explicit TwoRanks(const Case& c) {
    std::vector<tutti::GroupOptions> options(2);
    const auto store = tutti::make_memory_store();
    for (int rank = 0; rank < 2; ++rank) {
      auto& of_rank = options[static_cast<std::size_t>(rank)];
      of_rank.backend = "local";
      of_rank.store = store;
      of_rank.rank = rank;
      of_rank.size = 2;
      losses_.push_back(c.make());
    }
    groups_ = tutti::ProcessGroup::create_all(options);
  }
  /// Calls on two ranks.
  RanksTime time(const Features& f, bool labelled) {
    std::barrier start(3);
    std::array<double, 2> times{};
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        start.arrive_and_wait();
        times[rank] = seconds([&] {
          static_cast<void>(
              (*losses_[rank])(groups_[rank], f.part(static_cast<int>(rank), 2, labelled)));
        });
      });
    start.arrive_and_wait();
    const double wall = wall_seconds([&] { threads.clear(); });
    return {std::max(times[0], times[1]), wall};
  }

 private:
  std::vector<std::unique_ptr<FeatureLoss>> losses_;
  std::vector<tutti::ProcessGroup> groups_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t rows = argc > 1 ? std::atoll(argv[1]) : 8192;
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 5;
  const std::vector<Case> cases{
      {"clip", [] { return std::make_unique<Clip>(ClipOptions{.scale = 14.3}); }, 4, 2, 4, false},
      {"siglip", [] { return std::make_unique<SigLip>(); }, 2, 2, 2, false},
      {"sup_con", [] { return std::make_unique<SupCon>(); }, 2, 1, 2, true}};
  std::printf("%lld rows, f32; milliseconds\n", static_cast<long long>(rows));
  std::printf("%-8s %5s %9s %9s %9s %9s %7s %7s %9s %7s %7s\n", "loss", "D", "loss", "gemm",
              "large", "exp", "ratio", "GF/s", "2 ranks", "faster", "wall");
  for (const auto& c : cases)
    for (const std::int64_t dims : {64, 256, 512}) {
      const Features f(rows, dims);
      const auto loss = c.make();
      TwoRanks ranks(c);
      std::vector<double> of_loss, of_gemm, of_large, of_exp, of_ranks, by_clock, ranks_by_clock;
      for (int i = 0; i < repetitions; ++i) {
        by_clock.push_back(wall_seconds([&] {
          of_loss.push_back(seconds([&] { static_cast<void>((*loss)(f.part(0, 1, c.labelled))); }));
        }));
        of_gemm.push_back(seconds([&] { multiply_blocks(f, c.logits, c.gradients); }));
        of_large.push_back(seconds([&] { multiply_large(f, c.logits, c.gradients); }));
        of_exp.push_back(seconds([&] { exponentiate(f, c.exponentials); }));
        const auto both = ranks.time(f, c.labelled);
        of_ranks.push_back(both.processor);
        ranks_by_clock.push_back(both.wall);
      }
      const double units = c.logits + c.gradients;
      const auto pairs = static_cast<double>(rows) * static_cast<double>(rows);
      std::printf("%-8s %5lld %9.1f %9.1f %9.1f %9.1f %7.2f %7.1f %9.1f %7.2f %7.2f\n",
                  c.name.c_str(), static_cast<long long>(dims), 1e3 * median(of_loss),
                  1e3 * median(of_gemm), 1e3 * median(of_large), 1e3 * median(of_exp),
                  median(of_loss) / (median(of_gemm) + median(of_exp)),
                  2e-9 * units * pairs * static_cast<double>(dims) / median(of_gemm),
                  1e3 * median(of_ranks), median(of_loss) / median(of_ranks),
                  median(by_clock) / median(ranks_by_clock));
      std::fflush(stdout);
    }
}
