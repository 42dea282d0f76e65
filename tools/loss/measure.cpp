#include "loss/measure.hpp"

#include <chrono>
#include <utility>

#include "loss/call.hpp"
#include "loss/memory.hpp"

namespace tutti::tool {

void parts(Message& message, LossMismatch& worst) {
  message(worst.rank, worst.call, worst.array, worst.index, worst.expected, worst.got,
          worst.difference);
}
void parts(Message& message, LossDifferences& found) {
  message(found.loss, found.gradient, found.wrong, found.worst);
}
void parts(Message& message, LossCost& cost) {
  message(cost.samples_us, cost.evaluations, cost.peak_extra_bytes);
}
void parts(Message& message, OfRank& rank) {
  message(rank.differences, rank.loss, rank.gradient_squares, rank.cost);
}

namespace {

using Clock = std::chrono::steady_clock;

/// Makes the calls of one loss, alone or as a rank of a group. Call k gets this rank's part of rows
/// [k N, (k + 1) N) of the stream.
class Calls {
 public:
  Calls(LossKind kind, const LossProblem& problem, ProcessGroup* group, const RowLayout& layout)
      : kind_(kind), problem_(problem), group_(group), layout_(layout), loss_(kind, problem) {}

  losses::LossResult next() { return loss_(group_, rows()); }

  /// Times `rounds` calls, then makes one more, whose peak memory it records if `watches_memory` is
  /// set. Makes the rows before the clock starts; the ranks start together. `bands`: null, or
  /// receives the diagnostics of the first call.
  LossCost measure(std::int64_t rounds, bool watches_memory,
                   std::vector<losses::PAucDiagnostics>* bands) {
    LossCost cost;
    for (std::int64_t round = 0; round < rounds; ++round) {
      const LossRows own = rows();
      meet();
      const auto start = Clock::now();
      const losses::LossResult result = loss_(group_, own);
      const std::chrono::duration<double, std::micro> time = Clock::now() - start;
      cost.samples_us.push_back(time.count());
      if (round > 0) continue;
      cost.evaluations = result.evaluations;
      if (bands != nullptr) *bands = loss_.diagnostics();
    }
    const LossRows own = rows();
    PeakMemory peak;
    meet();
    if (watches_memory) peak.begin();
    meet();
    const losses::LossResult result = loss_(group_, own);
    meet();
    if (watches_memory) cost.peak_extra_bytes = peak.end();
    return cost;
  }

  const LossCall& loss() const noexcept { return loss_; }

 private:
  int rank() const noexcept { return group_ == nullptr ? 0 : group_->rank(); }
  void meet() {
    if (group_ != nullptr) group_->barrier();
  }
  LossRows rows() {
    const std::int64_t first = problem_.rows * number_++ + layout_.offset(rank());
    return make_rows(problem_, kind_, first, layout_[rank()]);
  }

  LossKind kind_;
  const LossProblem& problem_;
  ProcessGroup* group_;
  const RowLayout& layout_;
  LossCall loss_;
  std::int64_t number_ = 0;
};

double squares(const ConstTensorView& array) {
  const auto sum = [&]<typename T>(const T* values) {
    double total = 0;
    for (std::int64_t i = 0; i < array.shape.numel(); ++i) {
      const auto value = static_cast<double>(values[i]);
      total += value * value;
    }
    return total;
  };
  return array.dtype == DType::f64 ? sum(static_cast<const double*>(array.data))
                                   : sum(static_cast<const float*>(array.data));
}

}  // namespace

OneProcess compute_alone(LossKind kind, const LossPlan& plan, bool measured) {
  const RowLayout layout = RowLayout::equal(1, plan.problem.rows);
  Calls calls(kind, plan.problem, nullptr, layout);
  OneProcess alone;
  for (std::int64_t i = 0; i < plan.calls; ++i) alone.calls.push_back(calls.next());
  if (const auto& loss = calls.loss().ranking()) {
    alone.temperature = loss->temperature();
    alone.queued = loss->queued();
  }
  if (!measured) return alone;
  std::vector<losses::PAucDiagnostics> bands;
  alone.cost = calls.measure(plan.rounds, true, &bands);
  alone.pairs = time_pairs(kind, plan.problem, plan.calls, alone.temperature.value_or(0), bands);
  return alone;
}

OfRank compute_together(Rank& rank, LossKind kind, const LossPlan& plan, const RowLayout& layout,
                        const OneProcess& alone, bool watches_memory) {
  const int number = rank.group.rank();
  Calls calls(kind, plan.problem, &rank.group, layout);
  LossComparison comparison(number, plan.tolerance);
  OfRank found;
  for (std::int64_t i = 0; i < plan.calls; ++i) {
    rank.position.iteration = i;
    const losses::LossResult result = calls.next();
    const losses::LossResult& expected = alone.calls[static_cast<std::size_t>(i)];
    comparison.loss(i, expected.loss, result.loss);
    comparison.gradient(i, expected.grad, layout.offset(number), result.grad);
    found.loss = result.loss;
    found.gradient_squares = squares(result.grad);
  }
  found.differences = comparison.found();
  found.cost = calls.measure(plan.rounds, watches_memory, nullptr);
  return found;
}

}  // namespace tutti::tool
