#include <tutti/metrics.hpp>

#include <algorithm>
#include <span>
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
  return guard([&] {
    auto& g = of(group);
    const Call call(options);
    tutti::metrics::ScoredRows rows(weights != nullptr);
    rows.add(view(scores), view(targets), view(weights));
    const tutti::metrics::BinaryOptions wanted{
        .precisions = {precisions, precisions + precision_count},
        .quantiles = {quantiles, quantiles + quantile_count}};
    give_result(result, [&](Content& to) {
      auto found = binary_metrics(g, rows, wanted, call.options());
      to.add(std::vector{found.auroc, found.average_precision});
      to.add(std::move(found.recalls));
      to.add(std::move(found.quantiles));
    });
  });
}

tutti_status tutti_quantiles(tutti_group* group, const tutti_array* array, const double* quantiles,
                             size_t count, const tutti_call_options* options, double* values) {
  return guard([&] {
    auto& to = deref(values, "an out-parameter");
    std::ranges::copy(tutti::metrics::quantiles(of(group), view(array), std::span(quantiles, count),
                                                Call(options).options()),
                      &to);
  });
}

}  // extern "C"
