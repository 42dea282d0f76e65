// Operators of torch, torch.ops.tutti: the losses, as terms and their gradients, and gathers of
// rows. python/tutti adds autograd, reductions and the queue.
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <tutti/adapters/torch/detail/collective.hpp>
#include <tutti/adapters/torch/tensor.hpp>
#include <tutti/gather.hpp>
#include <tutti/losses/focal.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include "torch/c10d_backend.hpp"
#include "torch/errors.hpp"

namespace tutti::c10d_door {
namespace {

using namespace losses;  // NOLINT(google-build-using-namespace)
using OptionalTensor = std::optional<at::Tensor>;

// Copies of what an operator reads; views of them live as long as they do.
at::Tensor read_as(const at::Tensor& x, at::ScalarType type) {
  return x.detach().to(type).contiguous();
}
at::Tensor terms_like(const std::vector<double>& terms, const at::Tensor& logits) {
  return at::tensor(terms, at::kDouble).to(logits.scalar_type());
}
at::Tensor gradient_like(LossResult&& result, const at::Tensor& logits) {
  return libtorch::to_torch(std::move(result.grad)).view(logits.sizes());
}

void set_own(SmoothApOptions& options) {
  options.threads = at::get_num_threads();
}
void set_own(RecallAtQuantileOptions& options, double quantile, std::int64_t interpolation) {
  options.quantile = quantile;
  options.interpolation = static_cast<Interpolation>(interpolation);
}
void set_own(PAucAtBudgetOptions& options, double alpha, double beta, std::int64_t surrogate,
             std::int64_t knots, std::int64_t tau_scale, std::int64_t positives, std::int64_t basis,
             std::int64_t interpolation) {
  using Options = PAucAtBudgetOptions;
  options.alpha = alpha;
  options.beta = beta;
  options.surrogate = static_cast<Options::Surrogate>(surrogate);
  options.knots = static_cast<int>(knots);
  options.tau_scale = static_cast<Options::Scale>(tau_scale);
  options.positives = static_cast<Options::Positives>(positives);
  options.basis = static_cast<Options::Basis>(basis);
  options.interpolation = static_cast<Interpolation>(interpolation);
}

/// [C, 5]: t_alpha, t_beta, tau_eff, band_negatives and variance of each class; NaN for losses that
/// have none.
at::Tensor diagnostics_of(const RankingLoss& loss, std::int64_t classes) {
  auto table = at::full({classes, 5}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  if (const auto* p_auc = dynamic_cast<const PAucAtBudget*>(&loss)) {
    auto* row = table.mutable_data_ptr<double>();
    for (const auto& of : p_auc->diagnostics()) {
      for (const double value :
           {of.t_alpha, of.t_beta, of.tau_eff, static_cast<double>(of.band_negatives), of.variance})
        *row++ = value;
    }
  }
  return table;
}

using RankingTerms = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// Evaluates a ranking loss of a pool, which the ranks of `group`, if it is not empty, share.
/// pool_rows: as Batch::pool_rows.
/// @return each [C], in the logits' dtype; status [C], i64; grad, like the logits: column c is the
///         gradient of class c; diagnostics [C, 5], f64.
template <typename Loss, typename... Own>
RankingTerms ranking_terms(const at::Tensor& logits, const at::Tensor& targets,
                           const OptionalTensor& iid, const OptionalTensor& weight,
                           at::IntArrayRef pool_rows, std::int64_t ignore_index, double temperature,
                           std::int64_t max_rows, std::int64_t seed, bool compat, std::string group,
                           Own... own) {
  return in_torch_errors(group.empty() ? "" : description_of(group), [&] {
    const c10::NoGradGuard off;
    const auto x = read_as(logits, logits.scalar_type());
    const auto y = read_as(targets, at::kLong);
    const auto independent = iid ? OptionalTensor(read_as(*iid, at::kBool)) : std::nullopt;
    const auto weights =
        weight ? OptionalTensor(read_as(*weight, weight->scalar_type())) : std::nullopt;
    typename Loss::Options options;
    options.classes = logits.size(1);
    options.ignore_index = ignore_index;
    options.temperature = temperature;
    options.reduction = Reduction::none;
    options.grad_scale = GradScale::mean;
    options.pool.gather = false;
    options.pool.max_rows = max_rows;
    options.pool.seed = static_cast<std::uint64_t>(seed);
    // As in imbalanced-losses 0.6.0, whose recall at a quantile refuses them if there are classes.
    options.pool.other_targets =
        compat && (options.classes == 1 || !std::is_same_v<Loss, RecallAtQuantile>);
    set_own(options, own...);
    Batch batch{.logits = libtorch::view(x),
                .targets = libtorch::view(y),
                .pool_rows = std::span(pool_rows.data(), pool_rows.size())};
    if (independent) batch.iid = libtorch::view(*independent);
    if (weights) batch.weight = libtorch::view(*weights);
    Loss loss(options);
    auto result = group.empty() ? loss(batch) : loss(group_under(group, c10::kCPU), batch);
    std::vector<std::int64_t> status;
    for (const ClassStatus of : result.status) status.push_back(static_cast<std::int64_t>(of));
    auto each = terms_like(result.per_class, logits);
    return RankingTerms(std::move(each), at::tensor(status, at::kLong),
                        gradient_like(std::move(result), logits),
                        diagnostics_of(loss, logits.size(1)));
  });
}

using FocalTerms = std::tuple<at::Tensor, at::Tensor>;

/// @return the loss of each element and its gradient, like the inputs.
FocalTerms sigmoid_focal(const at::Tensor& inputs, const at::Tensor& targets, double alpha,
                         double gamma) {
  return in_torch_errors({}, [&] {
    const c10::NoGradGuard off;
    const SigmoidFocal loss({.alpha = alpha,
                             .gamma = gamma,
                             .reduction = Reduction::none,
                             .grad_scale = GradScale::mean});
    const auto x = read_as(inputs, inputs.scalar_type());
    const auto y = read_as(targets, inputs.scalar_type());
    auto result = loss({libtorch::view(x), libtorch::view(y)});
    auto each = terms_like(result.per_element, inputs).view(inputs.sizes());
    return FocalTerms(std::move(each), gradient_like(std::move(result), inputs));
  });
}

/// @return the loss of each row, like the targets, and the gradient, like the inputs.
FocalTerms softmax_focal(const at::Tensor& inputs, const at::Tensor& targets,
                         const OptionalTensor& alpha, double gamma, double label_smoothing,
                         std::int64_t ignore_index) {
  return in_torch_errors({}, [&] {
    const c10::NoGradGuard off;
    SoftmaxFocalOptions options{.gamma = gamma,
                                .label_smoothing = label_smoothing,
                                .ignore_index = ignore_index,
                                .reduction = Reduction::none,
                                .grad_scale = GradScale::mean};
    if (alpha) {
      const auto values = read_as(*alpha, at::kDouble);
      const auto* first = values.const_data_ptr<double>();
      options.alpha.assign(first, first + values.numel());
    }
    const auto x = read_as(inputs, inputs.scalar_type());
    const auto y = read_as(targets, at::kLong);
    auto result = SoftmaxFocal(options)({libtorch::view(x), libtorch::view(y)});
    auto each = terms_like(result.per_element, inputs).view(targets.sizes());
    return FocalTerms(std::move(each), gradient_like(std::move(result), inputs));
  });
}

/// [n_r, ...] -> [sum n_r, ...], and n_r of every rank r.
std::tuple<at::Tensor, std::vector<std::int64_t>> gather_rows_of(const at::Tensor& local,
                                                                 const std::string& group) {
  return in_torch_errors(description_of(group), [&] {
    const libtorch::Contiguous x(local);
    auto all = all_gather_rows(group_under(group, local.device()), x, {},
                               libtorch::detail::in_torch(local, CallOptions()));
    const auto rows = all.rows.counts();
    return std::tuple(libtorch::to_torch(std::move(all.data)),
                      std::vector(rows.begin(), rows.end()));
  });
}

/// [sum n_r, ...] -> this rank's n rows of the sum over ranks.
at::Tensor sum_rows_of(const at::Tensor& whole, at::IntArrayRef rows, const std::string& group) {
  return in_torch_errors(description_of(group), [&] {
    const libtorch::Contiguous x(whole);
    return libtorch::to_torch(
        reduce_scatter_rows(group_under(group, whole.device()), x, RowLayout(rows.vec()),
                            ReduceOp::sum, libtorch::detail::in_torch(whole, CallOptions())));
  });
}

std::string ranking_schema(const std::string& name, const std::string& own) {
  return name +
         "(Tensor logits, Tensor targets, Tensor? iid, Tensor? weight, SymInt[] pool_rows, "
         "int ignore_index, float temperature, int max_rows, int seed, bool compat, str group" +
         own + ") -> (Tensor each, Tensor status, Tensor grad, Tensor diagnostics)";
}

}  // namespace

TORCH_LIBRARY(tutti, m) {
  const auto define = [&m](const std::string& schema) {
    m.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
  };
  define(ranking_schema("smooth_ap", ""));
  define(ranking_schema("recall_at_quantile", ", float quantile, int interpolation"));
  define(ranking_schema("p_auc_at_budget",
                        ", float alpha, float beta, int surrogate, int knots, int tau_scale, "
                        "int positives, int basis, int interpolation"));
  define(
      "sigmoid_focal(Tensor inputs, Tensor targets, float alpha, float gamma) -> "
      "(Tensor each, Tensor grad)");
  define(
      "softmax_focal(Tensor inputs, Tensor targets, Tensor? alpha, float gamma, "
      "float label_smoothing, int ignore_index) -> (Tensor each, Tensor grad)");
  constexpr auto any_device = c10::DispatchKey::CompositeExplicitAutograd;
  m.def("all_gather_rows", torch::dispatch(any_device, &gather_rows_of));
  m.def("reduce_scatter_rows", torch::dispatch(any_device, &sum_rows_of));
}

TORCH_LIBRARY_IMPL(tutti, CPU, m) {
  using Int = std::int64_t;
  m.impl("smooth_ap", &ranking_terms<SmoothAp>);
  m.impl("recall_at_quantile", &ranking_terms<RecallAtQuantile, double, Int>);
  m.impl("p_auc_at_budget",
         &ranking_terms<PAucAtBudget, double, double, Int, Int, Int, Int, Int, Int>);
  m.impl("sigmoid_focal", &sigmoid_focal);
  m.impl("softmax_focal", &softmax_focal);
}

}  // namespace tutti::c10d_door
