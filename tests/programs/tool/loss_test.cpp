#include "loss/loss.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <tutti/backend/forwarding_backend.hpp>

#include "loss/call.hpp"
#include "loss/compare.hpp"
#include "loss/memory.hpp"
#include "loss/pairs.hpp"

namespace tutti::tool {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

std::vector<std::byte> bytes_of(const ConstTensorView& array) {
  const auto* data = static_cast<const std::byte*>(array.data);
  return {data, data + array.bytes()};
}

// The rows.

TEST(LossRows, ARowIsTheSameOnEveryRank) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const LossKind kind : {LossKind::smooth_ap, LossKind::sigmoid_focal}) {
      LossProblem problem;
      problem.classes = 3;
      problem.dtype = dtype;
      const LossRows all = make_rows(problem, kind, 0, 90);
      const LossRows part = make_rows(problem, kind, 40, 50);
      for (const auto member : {&LossRows::logits, &LossRows::targets}) {
        const std::vector<std::byte> whole = bytes_of(all.*member);
        const std::vector<std::byte> piece = bytes_of(part.*member);
        EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.end() - std::ssize(piece)));
      }
      problem.seed = 1;
      const LossRows others = make_rows(problem, kind, 0, 90);
      EXPECT_NE(bytes_of(others.logits), bytes_of(all.logits));
    }
  }
}

TEST(LossRows, ClassesAndIgnoredRowsAreAsOftenAsAsked) {
  LossProblem problem;
  problem.classes = 4;
  problem.positive_rate = 0.3;
  problem.ignore_rate = 0.2;
  constexpr std::int64_t rows = 100'000;
  std::vector<double> share(4);
  double ignored = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t target = target_of(problem, row);
    if (target == losses::default_ignore_index)
      ignored += 1.0 / rows;
    else
      share[static_cast<std::size_t>(target)] += 1.0 / rows;
  }
  // Ten standard deviations of a count over this number of rows.
  EXPECT_NEAR(ignored, 0.2, 0.016);
  EXPECT_NEAR(share[0], 0.8 * 0.7, 0.016);
  for (std::size_t c = 1; c < 4; ++c) EXPECT_NEAR(share[c], 0.8 * 0.1, 0.016);
}

TEST(LossRows, ScoresAreNormalAndHigherForTheirOwnClass) {
  LossProblem problem;
  problem.positive_rate = 0.5;
  double sum[2] = {}, squares[2] = {}, count[2] = {};
  for (std::int64_t row = 0; row < 100'000; ++row) {
    const std::size_t own = belongs_to(problem, row, 0) ? 1 : 0;
    const double score = score_of(problem, row, 0);
    sum[own] += score;
    squares[own] += score * score;
    count[own] += 1;
  }
  for (const std::size_t own : {0U, 1U}) {
    const double mean = sum[own] / count[own];
    // Seven standard deviations of the mean and of the variance of 50,000 normal numbers.
    EXPECT_NEAR(mean, static_cast<double>(own), 0.032);
    EXPECT_NEAR(squares[own] / count[own] - mean * mean, 1, 0.045);
  }
}

TEST(LossRows, EverySplitHasAllRowsInItsOwnWay) {
  for (const Split split : {Split::even, Split::uneven, Split::one})
    for (const std::int64_t rows : {1, 7, 100})
      for (const int ranks : {1, 2, 3, 4, 7}) {
        const RowLayout layout = split_rows(split, rows, ranks);
        EXPECT_EQ(layout.ranks(), ranks);
        EXPECT_EQ(layout.total(), rows) << name_of(split) << " " << rows << " on " << ranks;
      }
  EXPECT_EQ(split_rows(Split::even, 11, 3), RowLayout(std::vector<std::int64_t>{3, 4, 4}));
  EXPECT_EQ(split_rows(Split::uneven, 12, 3), RowLayout(std::vector<std::int64_t>{3, 0, 9}));
  EXPECT_EQ(split_rows(Split::uneven, 9, 2), RowLayout(std::vector<std::int64_t>{3, 6}));
  EXPECT_EQ(split_rows(Split::one, 9, 3), RowLayout(std::vector<std::int64_t>{0, 0, 9}));
}

// The comparison.

TEST(LossComparison, EqualNumbersDoNotDiffer) {
  const std::vector<double> gradient{1, -2, nan, 0};
  LossComparison found(0, 0);
  found.loss(0, 0.5, 0.5);
  found.loss(1, nan, nan);
  found.gradient(0, gradient, 1, std::span(gradient).subspan(1));
  EXPECT_EQ(found.found().wrong, 0);
  EXPECT_EQ(found.found().loss, 0);
  EXPECT_EQ(found.found().gradient, 0);
  EXPECT_FALSE(found.found().worst);
}

TEST(LossComparison, AnAlteredElementIsWrongAndNamedByItsPlaceInTheWholeGradient) {
  const std::vector<double> whole{1, -2, 3, -4, 5, 8, 7, 6};  // [4, 2]
  std::vector<double> own(whole.begin() + 2, whole.end());
  own[1] += 8e-11;
  own[4] += 8e-9;
  LossComparison found(3, 1e-12);
  found.gradient(2, view(whole, {4, 2}), 1, view(own, {3, 2}));
  EXPECT_EQ(found.found().wrong, 2);
  EXPECT_NEAR(found.found().gradient, 1e-9, 1e-15);  // Relative to the largest element.
  ASSERT_TRUE(found.found().worst);
  EXPECT_EQ(found.found().worst->rank, 3);
  EXPECT_EQ(found.found().worst->call, 2);
  EXPECT_EQ(found.found().worst->array, "gradient");
  EXPECT_EQ(found.found().worst->index, 6);
  EXPECT_EQ(found.found().worst->expected, "7");
  EXPECT_EQ(found.found().worst->got, "7.000000008");
}

TEST(LossComparison, WhatIsWithinTheToleranceIsReportedButNotWrong) {
  const std::vector<float> whole{1, 2, 4};
  const std::vector<float> own{1, 2, 4.00001F};
  LossComparison found(0, 1e-5);
  found.gradient(0, whole, 0, own);
  EXPECT_EQ(found.found().wrong, 0);
  EXPECT_GT(found.found().gradient, 2e-6);
}

TEST(LossComparison, ALossDiffersRelativeToItselfWhereItIsAboveOne) {
  LossComparison found(0, 1e-3);
  found.loss(0, 1000, 1000.5);
  EXPECT_DOUBLE_EQ(found.found().loss, 0.5e-3);
  found.loss(1, 1e-3, 2e-3);
  EXPECT_DOUBLE_EQ(found.found().loss, 1e-3);
  EXPECT_EQ(found.found().wrong, 0);
  found.loss(2, 0.5, 0.502);
  EXPECT_EQ(found.found().wrong, 1);
  EXPECT_EQ(found.found().worst->array, "loss");
}

TEST(LossComparison, NoToleranceCoversANumberThatIsNotFinite) {
  for (const auto& [expected, got] : {std::pair(0.5, nan), {nan, 0.5}, {0.5, infinity}}) {
    LossComparison found(0, 1e300);
    found.loss(0, expected, got);
    found.gradient(0, std::span(&expected, 1), 0, std::span(&got, 1));
    EXPECT_EQ(found.found().wrong, 2) << expected << " " << got;
  }
}

TEST(LossComparison, AGradientOfZerosHasToBeZero) {
  const std::vector<double> zeros(3);
  std::vector<double> own(3);
  LossComparison found(0, 1e-5);
  found.gradient(0, zeros, 0, own);
  EXPECT_EQ(found.found().wrong, 0);
  own[2] = 1e-30;
  found.gradient(0, zeros, 0, own);
  EXPECT_EQ(found.found().wrong, 1);
  EXPECT_EQ(found.found().gradient, infinity);
}

// The loop of pairs.

struct OneClass {
  std::vector<double> scores{};
  std::vector<std::uint8_t> positive{};
};
OneClass one_class(const LossProblem& problem) {
  OneClass rows;
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    rows.scores.push_back(score_of(problem, row, 0));
    rows.positive.push_back(belongs_to(problem, row, 0) ? 1 : 0);
  }
  return rows;
}

/// Tolerance: the same terms in another order, and a soft rank with an error of 1e-10.
void expect_same(const PairLoop& loop, const losses::LossResult& result) {
  EXPECT_EQ(loop.done, loop.anchors);
  EXPECT_NEAR(loop.loss, result.loss, 1e-9);
  const auto* gradient = static_cast<const double*>(result.grad.data());
  double most = 0;
  for (const double slope : loop.gradient) most = std::max(most, std::abs(slope));
  EXPECT_GT(most, 0);
  for (std::size_t i = 0; i < loop.gradient.size(); ++i)
    EXPECT_NEAR(loop.gradient[i], gradient[i], 1e-9 * most) << i;
}

TEST(LossPairs, TheLoopHasTheNumbersOfSmoothAp) {
  LossProblem problem;
  problem.rows = 400;
  problem.positive_rate = 0.2;
  problem.dtype = DType::f64;
  const OneClass rows = one_class(problem);
  LossCall loss(LossKind::smooth_ap, problem);
  const auto result = loss(nullptr, make_rows(problem, LossKind::smooth_ap, 0, problem.rows));
  expect_same(smooth_ap_by_pairs(rows.scores, rows.positive, loss.ranking()->temperature(), 1h),
              result);
}

TEST(LossPairs, TheLoopHasTheNumbersOfPairwisePAuc) {
  LossProblem problem;
  problem.rows = 400;
  problem.positive_rate = 0.2;
  problem.budget = 0.1;
  problem.surrogate = Surrogate::pairwise;
  problem.dtype = DType::f64;
  const OneClass rows = one_class(problem);
  LossCall loss(LossKind::p_auc_at_budget, problem);
  const auto result = loss(nullptr, make_rows(problem, LossKind::p_auc_at_budget, 0, problem.rows));
  ASSERT_EQ(loss.diagnostics().size(), 1U);
  expect_same(p_auc_by_pairs(rows.scores, rows.positive, loss.diagnostics()[0], 1h), result);
}

TEST(LossPairs, ALoopThatWouldTakeTooLongStopsAfterAFewAnchors) {
  LossProblem problem;
  const OneClass rows = one_class(problem);
  const PairLoop loop = smooth_ap_by_pairs(rows.scores, rows.positive, 0.01, 0ns);
  EXPECT_EQ(loop.done, 1);
  EXPECT_GT(loop.anchors, 100);
  EXPECT_GT(loop.time.count(), 0);
}

TEST(LossPairs, OnlyLossesOfPairsAreTimed) {
  LossProblem problem;
  problem.rows = 100;
  const std::vector<losses::PAucDiagnostics> bands(1);
  for (std::size_t i = 0; i < names_of<LossKind>.size(); ++i) {
    const auto kind = static_cast<LossKind>(i);
    EXPECT_EQ(time_pairs(kind, problem, 0, 0.01, bands).has_value(), kind == LossKind::smooth_ap);
  }
  problem.surrogate = Surrogate::pairwise;
  EXPECT_TRUE(time_pairs(LossKind::p_auc_at_budget, problem, 0, 0.01, bands));
}

// The memory.

TEST(PeakMemory, SeesWhatWasTakenAndGivenBackInBetween) {
  constexpr std::size_t size = std::size_t{64} << 20;
  PeakMemory peak;
  peak.begin();
  {
    // Unlike new, the compiler cannot remove it: every page is written through volatile.
    const std::unique_ptr<volatile char[]> block(new volatile char[size]);
    for (std::size_t i = 0; i < size; i += 4096) block[i] = 1;
  }
  const std::optional<std::int64_t> most = peak.end();
  peak.begin();
  const std::optional<std::int64_t> nothing = peak.end();
  EXPECT_EQ(most.has_value(), nothing.has_value());
  // The kernel counts in batches of pages, for each thread.
  EXPECT_GE(most.value_or(size), std::int64_t{60} << 20);
  EXPECT_LE(nothing.value_or(0), std::int64_t{8} << 20);
}

// Whole runs.

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

/// The text written to the file.
std::string text_of(const File& file) {
  std::string text(static_cast<std::size_t>(std::ftell(file.get())), ' ');
  std::rewind(file.get());
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file.get()), text.size());
  return text;
}

/// `meddle` receives finished all_reduces of doubles. Of the losses here only recall_at_quantile
/// makes them, if there are too many rows to gather; the tool makes none.
class Meddling final : public ForwardingBackend {
 public:
  using Meddle = std::function<void(std::span<double>)>;
  Meddling(std::unique_ptr<Backend> inner, Meddle meddle)
      : ForwardingBackend(std::move(inner)), meddle_(std::move(meddle)) {}

  Work launch(std::span<const Op> ops, const Call& call) override {
    Work work = inner().launch(ops, call);
    if (ops.front().kind != Operation::all_reduce || ops.front().out.dtype != DType::f64)
      return work;
    work.wait();
    const TensorView& out = ops.front().out;
    meddle_({static_cast<double*>(out.data), static_cast<std::size_t>(out.shape.numel())});
    return work;
  }

 private:
  Meddle meddle_;
};

LossOptions two_ranks(Meddling::Meddle meddle = {}) {
  LossOptions options;
  options.kinds = {LossKind::sigmoid_focal, LossKind::recall_at_quantile};
  options.plan.problem.rows = 60'000;
  options.plan.problem.positive_rate = 0.01;
  options.plan.rounds = 1;
  options.plan.tolerance = 1e-5;
  options.ranks = 2;
  options.backend = "local";
  options.format = Format::json;
  if (meddle)
    options.decorate = [meddle](int rank, std::unique_ptr<Backend> inner) {
      if (rank != 1) return inner;
      return std::unique_ptr<Backend>(std::make_unique<Meddling>(std::move(inner), meddle));
    };
  return options;
}

struct Result {
  Exit code;
  Json json;
  std::string err;
};
Result run(const LossOptions& options) {
  const File out(std::tmpfile());
  const File err(std::tmpfile());
  const Exit code = run_loss(options, out.get(), err.get());
  return {code, Json::parse(text_of(out)), text_of(err)};
}

TEST(Loss, WhatIsRightEndsWithZero) {
  const Result result = run(two_ranks());
  EXPECT_EQ(result.code, Exit::ok) << result.err;
  EXPECT_EQ(result.json.at("status"), "ok");
  EXPECT_EQ(result.err, "");
  for (const Json& row : result.json.at("results")) EXPECT_EQ(row.at("wrong"), 0);
}

TEST(Loss, ANumberThatDiffersOnOneRankEndsWithTwoAndIsNamed) {
  const Result result = run(two_ranks([](std::span<double> sums) { sums[0] *= 1.01; }));
  EXPECT_EQ(result.code, Exit::wrong_data);
  EXPECT_EQ(result.json.at("status"), "wrong_data");
  const Json& right = result.json.at("results").at(0);
  EXPECT_EQ(right.at("loss"), "sigmoid_focal");
  EXPECT_EQ(right.at("wrong"), 0);
  const Json& wrong = result.json.at("results").at(1);
  EXPECT_GE(wrong.at("wrong"), 1);
  EXPECT_EQ(wrong.at("worst").at("rank"), 1);
  EXPECT_GT(wrong.at("difference").at("loss"), 1e-4);
  EXPECT_NE(result.err.find("error: recall_at_quantile: "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("rank 1 call 0"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("sigmoid_focal"), std::string::npos) << result.err;
}

TEST(Loss, ALossThatIsNotANumberDiffers) {
  const Result result = run(two_ranks([](std::span<double> sums) { sums[0] = nan; }));
  EXPECT_EQ(result.code, Exit::wrong_data);
  EXPECT_TRUE(result.json.at("results").at(1).at("difference").at("loss").is_null());
  EXPECT_EQ(result.json.at("results").at(1).at("worst").at("got"), "nan");
}

TEST(Loss, ACallThatFailsEndsTheRunOfAllRanks) {
  const Result result =
      run(two_ranks([](std::span<double>) { throw Error(Errc::backend, "out of wire"); }));
  EXPECT_EQ(result.code, Exit::internal);
  EXPECT_EQ(result.json.at("status"), "error");
  EXPECT_NE(result.json.at("error").get<std::string>().find("out of wire"), std::string::npos);
  EXPECT_NE(result.err.find("out of wire"), std::string::npos) << result.err;
  EXPECT_EQ(result.json.at("results").size(), 1U);  // What was complete.
}

}  // namespace
}  // namespace tutti::tool
