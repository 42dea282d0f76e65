#include "phases.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <tutti/autograd.hpp>
#include <tutti/coalesce.hpp>
#include <tutti/ddp/gradient_reducer.hpp>
#include <tutti/ddp/local_sgd.hpp>
#include <tutti/gather.hpp>
#include <tutti/losses/clip.hpp>
#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/focal.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/siglip.hpp>
#include <tutti/losses/smooth_ap.hpp>
#include <tutti/losses/sup_con.hpp>
#include <tutti/metrics.hpp>
#include <tutti/sync.hpp>

namespace tutti::test {
namespace {

using Begin = std::function<void()>;
using Floats = std::vector<float>;

constexpr std::size_t many = 2000;  // Elements.

/// The arrays of a rank, and values to compare with.
struct Arrays {
  explicit Arrays(ProcessGroup& group)
      : rank(group.rank()), x(many, static_cast<float>(rank + 1)), y(many), z(many / 2) {}
  int rank;
  Floats x, y, z;
};

bool are(std::span<const float> values, float value) {
  for (const float v : values)
    if (v != value) return false;
  return true;
}

bool verbs(ProcessGroup& group, const Begin& begin) {
  Arrays a(group);
  Floats whole(2 * many);
  const int peer = 1 - a.rank;
  begin();
  group.all_reduce(a.x, ReduceOp::sum, {.name = "a name that is longer than a short string"});
  bool right = are(a.x, 3);
  group.broadcast(a.x, 1);
  group.reduce(a.x, a.y, 0);
  right = right && (a.rank != 0 || are(a.y, 6));
  group.all_gather(a.x, whole);
  right = right && are(whole, 3);
  group.all_gather(std::span(a.x).first(a.rank == 0 ? 100U : 300U), std::span(whole).first(400),
                   Rows{100, 300});
  group.reduce_scatter(a.x, a.z);
  right = right && are(a.z, 6);
  group.all_to_all(a.x, a.y);
  right = right && are(a.y, 3);
  group.gather(a.x, whole, 0);
  group.scatter(whole, a.y, 0);
  right = right && are(a.y, 3);
  group.scan(a.x, a.y);
  right = right && are(a.y, a.rank == 0 ? 3 : 6);
  group.exclusive_scan(a.x, a.y);
  group.barrier();
  group.sendrecv(a.x, peer, a.y, peer);
  right = right && are(a.y, 3);
  return group.all_reduce(2.0) == 4 && right;
}

bool async(ProcessGroup& group, const Begin& begin) {
  Arrays a(group);
  bool called = false;  // Outlives the Works, which end after their callbacks.
  begin();
  Work first = group.all_reduce_async(a.x, ReduceOp::sum,
                                      {.name = "a name that is longer than a short string"});
  Work second = group.all_gather_async(a.z, a.y, Rows{1000, 1000});
  second.on_done([&, rank = a.rank](const Error*) { called = rank < 2; });
  Work then = std::move(first).then([&] { a.z[0] = 7; });
  then.wait();
  second.wait();
  return are(a.x, 3) && a.z[0] == 7 && called;
}

bool coalesced(ProcessGroup& group, const Begin& begin) {
  Arrays a(group);
  begin();
  Coalesce calls(group);
  calls.add(group.all_reduce_async(a.x));
  calls.add(group.all_reduce_async(a.z));
  calls.add(group.sendrecv_async(std::span(a.y).first(8), 1 - a.rank, std::span(a.y).last(8),
                                 1 - a.rank));
  calls.launch().wait();
  return are(a.x, 3);
}

bool messages(ProcessGroup& group, const Begin& begin) {
  Arrays a(group);
  const int peer = 1 - a.rank;
  begin();
  Work send = group.send_async(a.x, peer, 3, {.name = "a name that is longer than a short string"});
  Work recv = group.recv_async(a.y, peer, 3, {.name = "a name that is longer than a short string"});
  send.wait();
  recv.wait();
  bool right = are(a.y, static_cast<float>(2 - a.rank));
  if (a.rank == 0) {
    group.recv(a.y, peer);
    group.send(a.y, peer);
  } else {
    group.send(a.x, peer);
    group.recv(a.y, peer);
  }
  right = right && are(a.y, 2);
  Work self = group.send_async(a.x, a.rank, 4);
  group.recv(a.y, a.rank, 4);
  self.wait();
  std::move(a.rank == 0 ? (recv = group.recv_async(a.y, peer, 5)) : (recv = {}))
      .on_done([](const Error*) {});
  if (a.rank == 1) group.send(a.x, 0, 5);
  recv.wait();
  return right;
}

bool split(ProcessGroup& group, const Begin& begin) {
  begin();
  auto part = group.split(0, -group.rank());
  if (!part || part->size() != 2 || part->rank() != 1 - group.rank()) return false;
  part->barrier();
  auto alone = group.subset({0});
  if (alone) alone->barrier();
  return alone.has_value() == (group.rank() == 0);
}

bool gathers(ProcessGroup& group, const Begin& begin) {
  Arrays a(group);
  Floats large(40'000, 1);
  std::string text = group.rank() == 0 ? std::string(5000, 'a') : std::string();
  const std::array<ConstTensorView, 2> two{a.x, a.y};
  const RowLayout layout({10'000, 30'000});
  begin();
  const auto rows = all_gather_rows(group, a.x);
  bool right = rows.data.values<float>()[many - 1] == 1 && rows.data.values<float>()[many] == 2;
  (void)all_gather_rows(group, large);
  (void)all_gather_rows(group, std::span<const ConstTensorView>(two));
  (void)all_gather_rows_async(group, large).get();
  (void)all_gather_padded(group, large, -1);
  (void)gather_rows(group, large, 1);
  (void)scatter_rows(group, large, layout, 0);
  (void)all_to_all_rows(group, large);
  right = right && gather_all_tensors(group, large).size() == 2;
  right = right && gather_all_tensors(group, std::span<const ConstTensorView>(two)).size() == 2;
  right = right && all_gather_bytes(group, text).front().size() == 5000;
  broadcast_bytes(group, text, 0);
  (void)reduce_scatter_rows(group, large, layout);
  return right && text.size() == 5000;
}

bool syncs(ProcessGroup& group, const Begin& begin) {
  Arrays a(group);
  LossAccumulator losses;
  losses.add("a name that is longer than a short string", 2, 1);
  begin();
  bool right = all_reduce_number(group, 2.0, ReduceOp::avg) == 2;
  right = right && global_mean(group, 3, 1) == 3;
  return right && losses.reduce(group).front().second == 2;
}

std::pair<Floats, std::vector<std::int64_t>> scored(std::size_t n) {
  Floats scores;
  std::vector<std::int64_t> targets;
  for (std::size_t i = 0; i < n; ++i) {
    scores.push_back(static_cast<float>(i * 7919 % 1000) / 1000);
    targets.push_back(i % 3 == 0 ? 1 : 0);
  }
  return {scores, targets};
}

bool losses_of_two(ProcessGroup& group, const Begin& begin) {
  const auto [scores, targets] = scored(300);
  const auto column = view(std::span(scores), Shape({300, 1}));
  const auto rows = view(std::span(scores), Shape({100, 3}));
  const auto classes = std::span(targets).first(100);
  const Floats all_ones(300, 1);
  const auto ones = view(std::span(all_ones), Shape({300, 1}));
  losses::SmoothAp smooth_ap({.pool = {.queue = 64}});
  losses::PAucAtBudget p_auc;
  losses::RecallAtQuantile recall;
  const losses::SigmoidFocal sigmoid;
  const losses::SoftmaxFocal softmax;
  const losses::CrossEntropy cross_entropy({.classes = 3});
  begin();
  bool right = smooth_ap(group, {column, targets}).loss > 0;
  right = right && smooth_ap(group, {column, targets}).loss > 0;
  right = right && std::isfinite(p_auc(group, {column, targets}).loss);
  right = right && std::isfinite(recall(group, {column, targets}).loss);
  right = right && sigmoid(group, {column, ones}).loss > 0;
  right = right && softmax(group, {rows, classes}).loss > 0;
  return right && cross_entropy(group, {rows, classes}).loss > 0;
}

/// Not a product: the phase is about memory. Builds without Eigen run it too.
void no_product(const losses::MatrixProduct& product) {
  for (std::int64_t i = 0; i < product.m; ++i)
    std::fill_n(static_cast<float*>(product.c) + i * product.c_stride, product.n, 0.5F);
}

bool losses_of_features(ProcessGroup& group, const Begin& begin) {
  const auto [scores, targets] = scored(300);
  losses::FeatureBatch pairs;
  pairs.anchors = view(std::span(scores), Shape({100, 3}));
  pairs.candidates = pairs.anchors;
  losses::FeatureBatch labelled;
  labelled.anchors = pairs.anchors;
  labelled.labels = std::span(targets).first(100);
  const losses::FeatureEngine engine{.threads = 2, .gemm = no_product};
  losses::Clip clip({.engine = engine});
  losses::SigLip siglip({.engine = engine});
  losses::SupCon sup_con({.engine = engine});
  begin();
  bool right = clip(group, pairs).loss > 0;
  right = right && clip(group, pairs).loss > 0;
  right = right && siglip(group, pairs).loss > 0;
  return right && std::isfinite(sup_con(group, labelled).loss);
}

bool measures(ProcessGroup& group, const Begin& begin) {
  const auto [few, targets_of_few] = scored(300);
  const auto [scores, targets] = scored(30'000);
  metrics::ScoredRows rows;
  metrics::ScoredRows more(true);
  rows.add(few, targets_of_few);
  const Floats weights(scores.size(), 2);
  more.add(scores, targets, weights);
  begin();
  bool right = metrics::auroc(group, rows) > 0;
  const auto all = metrics::binary_metrics(group, more, {.precisions = {0.3}, .quantiles = {0.5}});
  return right && all.auroc > 0 && all.recalls.size() == 1;
}

/// Objects that one rank makes, without a call.
bool objects(ProcessGroup& group, const Begin& begin) {
  const auto [scores, targets] = scored(300);
  begin();
  losses::SmoothAp loss({.pool = {.queue = 64}});
  const losses::SoftmaxFocal focal;
  ddp::PeriodicModelAverager averager(group, 1);
  LossAccumulator losses;
  losses.add("a name that is longer than a short string", 2, 1);
  metrics::ScoredRows rows;
  rows.add(scores, targets);
  metrics::ScoredRows copy;
  copy.load(rows.save());
  rows.merge(copy);
  loss.load(loss.save());
  return rows.rows().size() == 600 && RowLayout::equal(2, 3).total() == 6 &&
         !group.trace().empty() && group.local_size() == 2;
}

/// Two parameters, of which the second is large.
struct Gradients {
  std::vector<ddp::Parameter> parameters;
  Floats small = Floats(10), large = Floats(300'000);
  explicit Gradients(ProcessGroup& group) {
    for (const auto& [name, array] : {std::pair("small", &small), std::pair("large", &large)})
      parameters.push_back(
          {name, {nullptr, DType::f32, {std::ssize(*array)}, group.memory().device()}});
  }
};

bool reducer(ProcessGroup& group, const Begin& begin) {
  Gradients g(group);
  begin();
  ddp::GradientReducer reducer(group, g.parameters);
  bool right = true;
  for (int step = 0; step < 3; ++step) {
    g.small.assign(g.small.size(), static_cast<float>(group.rank()));
    g.large.assign(g.large.size(), static_cast<float>(group.rank()));
    reducer.mark_ready(1, g.large);
    reducer.mark_ready(0, g.small);
    reducer.finish();
    right = right && are(g.small, 0.5F) && are(g.large, 0.5F);
  }
  return right;
}

bool averager(ProcessGroup& group, const Begin& begin) {
  Gradients g(group);
  const std::array<TensorView, 2> parameters{g.small, g.large};
  ddp::PeriodicModelAverager averager(group, 1);
  begin();
  averager.average(parameters);
  g.large.assign(g.large.size(), static_cast<float>(group.rank()));
  averager.average(parameters);
  return true;
}

/// The caller destroys the group of rank 0, while rank 1 waits for it.
bool destroy(ProcessGroup& group, const Begin& begin) {
  Arrays a(group);
  group.all_reduce_async(a.x).wait();
  group.sendrecv(a.x, 1 - a.rank, a.y, 1 - a.rank);
  begin();
  if (a.rank == 1) group.barrier();
  return true;
}

const std::vector<Phase>& all_phases() {
  static const std::vector<Phase> all{
      {"create", nullptr},
      {"destroy", destroy, true},
      {"split", split},
      {"verbs", verbs},
      {"async", async},
      {"coalesced", coalesced},
      {"messages", messages},
      {"gathers", gathers},
      {"syncs", syncs},
      {"losses", losses_of_two},
      {"features", losses_of_features},
      {"metrics", measures},
      {"reducer", reducer},
      {"averager", averager},
      {"objects", objects},
  };
  return all;
}

}  // namespace

std::span<const Phase> phases() {
  return all_phases();
}

}  // namespace tutti::test
