#include <tutti/metrics.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include "c/values.hpp"

using namespace tutti::c_abi;  // NOLINT(google-build-using-namespace)

extern "C" {

tutti_status tutti_binary_metrics(tutti_group* group, const tutti_array* scores,
                                  const tutti_array* targets, const tutti_array* weights,
                                  const double* precisions, size_t precision_count,
                                  const double* quantiles, size_t quantile_count,
                                  const tutti_call_options* options, tutti_result** result) {
  return give_result(result, [&](Content& to) {
    auto& g = of(group);
    tutti::metrics::ScoredRows rows(weights != nullptr);
    rows.add(view(scores), view(targets), view(weights));
    const auto at = list_of(precisions, precision_count, "the list of precisions");
    const auto of_scores = list_of(quantiles, quantile_count, "the list of quantiles");
    auto found = binary_metrics(
        g, rows,
        {.precisions = {at.begin(), at.end()}, .quantiles = {of_scores.begin(), of_scores.end()}},
        Call(options).options());
    to.add(std::vector{found.auroc, found.average_precision});
    to.add(std::move(found.recalls));
    to.add(std::move(found.quantiles));
  });
}

tutti_status tutti_quantiles(tutti_group* group, const tutti_array* array, const double* quantiles,
                             size_t count, const tutti_call_options* options, double* values) {
  return guard([&] {
    auto& to = deref(values, "an out-parameter");
    const auto wanted = list_of(quantiles, count, "the list of quantiles");
    std::ranges::copy(
        tutti::metrics::quantiles(of(group), view(array), wanted, Call(options).options()), &to);
  });
}

}  // extern "C"
