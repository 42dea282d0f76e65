#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/focal.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>
#include <tutti/losses/warm_up.hpp>

#include "c/option_text.hpp"
#include "c/values.hpp"

using namespace tutti::c_abi;  // NOLINT(google-build-using-namespace)

using AnyLoss =
    std::variant<tutti::losses::CrossEntropy, tutti::losses::SigmoidFocal,
                 tutti::losses::SoftmaxFocal, std::unique_ptr<tutti::losses::RankingLoss>,
                 std::unique_ptr<tutti::losses::WarmUp>>;
struct tutti_loss {
  AnyLoss loss;
};

namespace tutti::c_abi {
namespace {

using namespace losses;  // NOLINT(google-build-using-namespace)

void read_common(OptionText& text, auto& o) {
  text.read("reduction", o.reduction, {"mean", "sum", "none"});
  text.read("grad_scale", o.grad_scale, {"sum", "mean", "local_slice"});
}

void read_ranking(OptionText& text, auto& o) {
  text.read("classes", o.classes);
  text.read("temperature", o.temperature);
  text.read("ignore_index", o.ignore_index);
  text.read("queue", o.pool.queue);
  text.read("max_rows", o.pool.max_rows);
  text.read("seed", o.pool.seed);
  text.read("gather", o.pool.gather);
  text.read("other_targets", o.pool.other_targets);
  read_common(text, o);
}

void read_quantile(OptionText& text, auto& o) {
  text.read("interpolation", o.interpolation, {"linear", "lower", "higher", "nearest", "midpoint"});
  text.read("budget", o.budget, {"rows", "weight"});
  read_ranking(text, o);
}

void read_options(OptionText& text, SmoothApOptions& o) {
  text.read("threads", o.threads);
  read_ranking(text, o);
}
void read_options(OptionText& text, RecallAtQuantileOptions& o) {
  text.read("quantile", o.quantile);
  read_quantile(text, o);
}
void read_options(OptionText& text, PAucAtBudgetOptions& o) {
  text.read("alpha", o.alpha);
  text.read("beta", o.beta);
  text.read("surrogate", o.surrogate, {"trapezoid", "pairwise"});
  text.read("knots", o.knots);
  text.read("tau_scale", o.tau_scale, {"iqr", "band"});
  text.read("basis", o.basis, {"fpr", "population"});
  text.read("positives", o.positives, {"pool", "live"});
  read_quantile(text, o);
}
void read_options(OptionText& text, CrossEntropyOptions& o) {
  text.read("classes", o.classes);
  text.read("weight", o.weight);
  text.read("pos_weight", o.pos_weight);
  text.read("label_smoothing", o.label_smoothing);
  text.read("ignore_index", o.ignore_index);
  read_common(text, o);
}
void read_options(OptionText& text, SigmoidFocalOptions& o) {
  text.read("alpha", o.alpha);
  text.read("gamma", o.gamma);
  text.read("normalize_by_positives", o.normalize_by_positives);
  read_common(text, o);
}
void read_options(OptionText& text, SoftmaxFocalOptions& o) {
  text.read("alpha", o.alpha);
  text.read("gamma", o.gamma);
  text.read("label_smoothing", o.label_smoothing);
  text.read("background", o.background);
  text.read("ignore_index", o.ignore_index);
  text.read("normalize_by_positives", o.normalize_by_positives);
  read_common(text, o);
}
void read_options(OptionText& text, WarmUpOptions& o) {
  text.read("warmup_epochs", o.warmup_epochs);
  text.read("warmup_steps", o.warmup_steps);
  text.read("blend_epochs", o.blend_epochs);
  text.read("blend_steps", o.blend_steps);
  text.read("temp_start", o.temp_start);
  text.read("temp_end", o.temp_end);
  text.read("temp_decay_steps", o.temp_decay_steps);
  text.read("final_main_weight", o.final_main_weight);
  text.read("reset_queue_each_epoch", o.reset_queue_each_epoch);
}

template <typename Options>
Options options_of(const char* from) {
  Options options;
  OptionText given(text(from));
  read_options(given, options);
  given.finish();
  return options;
}

template <typename Loss>
AnyLoss make_loss(const char* options) {
  const auto o = options_of<typename Loss::Options>(options);
  if constexpr (std::is_base_of_v<RankingLoss, Loss>)
    return std::unique_ptr<RankingLoss>(std::make_unique<Loss>(o));
  else
    return Loss(o);
}

struct LossKind {
  std::string_view name;
  AnyLoss (*make)(const char* options);
};
constexpr LossKind loss_kinds[] = {
    {"smooth_ap", make_loss<SmoothAp>},
    {"recall_at_quantile", make_loss<RecallAtQuantile>},
    {"p_auc_at_budget", make_loss<PAucAtBudget>},
    {"cross_entropy", make_loss<CrossEntropy>},
    {"sigmoid_focal", make_loss<SigmoidFocal>},
    {"softmax_focal", make_loss<SoftmaxFocal>},
};

Batch batch_of(const tutti_batch& from) {
  Batch to{.logits = view(from.logits), .targets = view(from.targets)};
  if (from.iid != nullptr) to.iid = view(from.iid);
  if (from.weight != nullptr) to.weight = view(from.weight);
  to.training = from.evaluation == 0;
  return to;
}

/// A copy of the vector's elements, which are enumerators.
std::vector<std::uint8_t> status_bytes(const std::vector<ClassStatus>& from) {
  std::vector<std::uint8_t> to;
  for (const auto each : from) to.push_back(static_cast<std::uint8_t>(each));
  return to;
}

/// Calls a loss with a group or without.
LossResult evaluate(AnyLoss& any, ProcessGroup* group, const tutti_batch& from,
                    const CallOptions& options) {
  const auto batch = batch_of(from);
  const auto compute = [&](auto& loss) {
    return group == nullptr ? loss(batch) : loss(*group, batch, options);
  };
  return std::visit(
      [&](auto& loss) {
        if constexpr (requires { *loss; })
          return compute(*loss);
        else
          return compute(loss);
      },
      any);
}

/// A table [C, 5] of PAucAtBudget's diagnostics; nothing for other losses.
void add_diagnostics(Content& to, const AnyLoss& any) {
  const auto* ranking = std::get_if<std::unique_ptr<RankingLoss>>(&any);
  const auto* loss = ranking == nullptr ? nullptr : dynamic_cast<PAucAtBudget*>(ranking->get());
  if (loss == nullptr) return;
  std::vector<double> table;
  for (const auto& of : loss->diagnostics())
    for (const double value :
         {of.t_alpha, of.t_beta, of.tau_eff, static_cast<double>(of.band_negatives), of.variance})
      table.push_back(value);
  to.add_table(std::move(table), 5);
}

/// Calls f with the loss, which keeps state: a RankingLoss or a WarmUp.
template <typename Any, typename F>
decltype(auto) with_state(Any* any, F&& f) {
  auto& loss = deref(any, "the loss").loss;
  if (const auto* ranking = std::get_if<std::unique_ptr<RankingLoss>>(&loss)) return f(**ranking);
  if (const auto* warm_up = std::get_if<std::unique_ptr<WarmUp>>(&loss)) return f(**warm_up);
  fail(Errc::unsupported, "only ranking losses and WarmUp keep state");
}

RankingLoss& ranking_of(RankingLoss& loss) {
  return loss;
}
RankingLoss& ranking_of(WarmUp& loss) {
  return loss.main();
}
template <typename Any>
RankingLoss& ranking_of(Any* any) {
  return with_state(any, [](auto& loss) -> RankingLoss& { return ranking_of(loss); });
}

WarmUp& warm_up_of(const tutti_loss* loss) {
  if (const auto* warm_up = std::get_if<std::unique_ptr<WarmUp>>(&deref(loss, "the loss").loss))
    return **warm_up;
  fail(Errc::unsupported, "only a loss of tutti_loss_create_warm_up() has epochs and steps");
}

}  // namespace
}  // namespace tutti::c_abi

extern "C" {

tutti_status tutti_loss_create(const char* kind, const char* options, tutti_loss** loss) {
  return guard([&] {
    auto& out = handle(loss);
    std::string all;
    for (const auto& each : loss_kinds) {
      if (each.name == text(kind)) {
        out = new tutti_loss{each.make(options)};
        return;
      }
      all.append(" ").append(each.name);
    }
    tutti::internal::failf(tutti::Errc::invalid_argument, "'{}' is no loss; there are:{}",
                           text(kind), all);
  });
}

tutti_status tutti_loss_create_warm_up(tutti_loss* first, tutti_loss* main, const char* options,
                                       tutti_loss** loss) {
  const std::unique_ptr<tutti_loss> taken_first(first);
  const std::unique_ptr<tutti_loss> taken_main(main == first ? nullptr : main);
  return guard([&] {
    auto& out = handle(loss);
    const auto* entropy =
        std::get_if<tutti::losses::CrossEntropy>(&deref(first, "the first loss").loss);
    auto* ranking = std::get_if<std::unique_ptr<tutti::losses::RankingLoss>>(
        &deref(main, "the main loss").loss);
    if (entropy == nullptr || ranking == nullptr)
      tutti::fail(tutti::Errc::invalid_argument,
                  "a warm-up takes a cross_entropy, then a ranking loss");
    out = new tutti_loss{std::make_unique<tutti::losses::WarmUp>(
        *entropy, std::move(*ranking), options_of<tutti::losses::WarmUpOptions>(options))};
  });
}

tutti_status tutti_loss_evaluate(tutti_loss* loss, tutti_group* group, const tutti_batch* batch,
                                 const tutti_call_options* options, double* value,
                                 tutti_result** result) {
  const auto compute = [&] {
    auto found = evaluate(deref(loss, "the loss").loss, group == nullptr ? nullptr : &of(group),
                          read(&deref(batch, "the batch")), Call(options).options());
    if (value != nullptr) *value = found.loss;
    return found;
  };
  if (result == nullptr) return guard([&] { (void)compute(); });
  return give_result(result, [&](Content& to) {
    auto found = compute();
    to.add(std::move(found.grad));
    to.add(found.per_class.empty() ? std::move(found.per_element) : std::move(found.per_class));
    to.add(status_bytes(found.status));
    add_diagnostics(to, loss->loss);
  });
}

tutti_status tutti_loss_save(const tutti_loss* loss, tutti_group* group,
                             const tutti_call_options* options, tutti_result** state) {
  return give_result(state, [&](Content& to) {
    const Call call(options);
    with_state(loss, [&](const auto& l) {
      to.add(std::string_view(group == nullptr ? l.save() : l.save(of(group), call.options())));
    });
  });
}

tutti_status tutti_loss_load(tutti_loss* loss, tutti_group* group, const void* state,
                             size_t bytes) {
  return guard([&] {
    const auto saved = text_of(state, bytes);
    with_state(loss, [&](auto& l) { group == nullptr ? l.load(saved) : l.load(of(group), saved); });
  });
}

tutti_status tutti_loss_set_group(tutti_loss* loss, tutti_group* group,
                                  const tutti_call_options* options) {
  return guard(
      [&] { with_state(loss, [&](auto& l) { l.set_group(of(group), Call(options).options()); }); });
}

tutti_status tutti_loss_temperature(const tutti_loss* loss, double* temperature) {
  return guard([&] { deref(temperature, "an out-parameter") = ranking_of(loss).temperature(); });
}

tutti_status tutti_loss_set_temperature(tutti_loss* loss, double temperature) {
  return guard([&] { ranking_of(loss).set_temperature(temperature); });
}

tutti_status tutti_loss_enqueue(tutti_loss* loss, tutti_group* group, const tutti_batch* rows,
                                const tutti_call_options* options) {
  return guard([&] {
    const Call call(options);
    const auto batch = batch_of(read(&deref(rows, "the rows")));
    auto& ranking = ranking_of(loss);
    group == nullptr ? ranking.enqueue(batch) : ranking.enqueue(of(group), batch, call.options());
  });
}

tutti_status tutti_loss_queued(const tutti_loss* loss, int64_t* rows) {
  return guard([&] { deref(rows, "an out-parameter") = ranking_of(loss).queued(); });
}

tutti_status tutti_loss_queued_rows(const tutti_loss* loss, tutti_group* group,
                                    const tutti_call_options* options, tutti_result** rows) {
  return give_result(rows, [&](Content& to) {
    const Call call(options);
    const auto& ranking = ranking_of(loss);
    auto all =
        group == nullptr ? ranking.queued_rows() : ranking.queued_rows(of(group), call.options());
    const auto rows_queued = std::max<std::size_t>(all.targets.size(), 1);
    const auto classes = static_cast<std::int64_t>(all.logits.size() / rows_queued);
    to.add_table(std::move(all.logits), std::max<std::int64_t>(classes, 1));
    to.add(std::move(all.targets));
    to.add(std::move(all.iid));
    to.add(std::move(all.weights));
  });
}

tutti_status tutti_loss_reset_queue(tutti_loss* loss) {
  return guard([&] { ranking_of(loss).reset_queue(); });
}

tutti_status tutti_loss_start_epoch(tutti_loss* loss, int64_t epoch) {
  return guard([&] { warm_up_of(loss).start_epoch(epoch); });
}

tutti_status tutti_loss_start_step(tutti_loss* loss, int64_t step) {
  return guard([&] { warm_up_of(loss).start_step(step); });
}

tutti_status tutti_loss_main_weight(const tutti_loss* loss, double* weight) {
  return guard([&] { deref(weight, "an out-parameter") = warm_up_of(loss).main_weight(); });
}

tutti_status tutti_loss_free(tutti_loss* loss) {
  delete loss;
  return TUTTI_OK;
}

}  // extern "C"
