/* Data-parallel training and metrics of the C ABI: include tutti/c/tutti.h. */
#ifndef TUTTI_C_TRAINING_H
#define TUTTI_C_TRAINING_H

#include <tutti/c/values.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- Data-parallel training: tutti/ddp/gradient_reducer.hpp. ---- */

typedef struct tutti_parameter {
  size_t size;
  const char* name;
  const tutti_array* value; /* Its data may be null: then only its shape counts. */
} tutti_parameter;

typedef struct tutti_reducer_options {
  size_t size;
  int64_t first_bucket_cap; /* Bytes; 0: 1 MiB. */
  int64_t bucket_cap;       /* Bytes; 0: 25 MiB. */
  double divisor;           /* 0: W. */
  int64_t timeout_ns;       /* 0: the group's. */
  int32_t find_unused_parameters;
  int32_t gradient_as_bucket_view;
  int32_t keep_buckets;     /* 1: rebuild_buckets = false. */
  int32_t skip_step_checks; /* 1: check_steps = false. */
  int32_t average_over_rows;
  int32_t order_fixed;
} tutti_reducer_options;

/* Parameters must live as long as the reducer. Lists are structs of equal size. */
tutti_status tutti_reducer_create(tutti_group* group, const tutti_parameter* parameters,
                                  size_t count, const tutti_parameter* buffers, size_t buffer_count,
                                  const tutti_reducer_options* options, tutti_reducer** reducer);
tutti_status tutti_reducer_mark_ready(tutti_reducer* reducer, size_t id,
                                      const tutti_array* gradient, void* producer);
tutti_status tutti_reducer_mark_unused(tutti_reducer* reducer, size_t id);
tutti_status tutti_reducer_finish(tutti_reducer* reducer);
tutti_status tutti_reducer_finish_rows(tutti_reducer* reducer, double rows);
tutti_status tutti_reducer_step_empty(tutti_reducer* reducer);
/* 1 opens the scope NoSync, 0 closes it. */
tutti_status tutti_reducer_no_sync(tutti_reducer* reducer, int32_t open);
tutti_status tutti_reducer_broadcast_buffers(tutti_reducer* reducer, void* stream);
tutti_status tutti_reducer_set_divisor(tutti_reducer* reducer, double divisor);
tutti_status tutti_reducer_set_group(tutti_reducer* reducer, tutti_group* group);
tutti_status tutti_reducer_gradient(const tutti_reducer* reducer, size_t id, tutti_array* gradient);
tutti_status tutti_reducer_is_reduced(const tutti_reducer* reducer, int32_t* reduced);
tutti_status tutti_reducer_is_used(const tutti_reducer* reducer, size_t id, int32_t* used);
tutti_status tutti_reducer_free(tutti_reducer* reducer);

/* tutti/ddp/hooks.hpp and bucket.hpp. A hook of the caller's reduces `buffer` in place and divides.
   It makes async calls on `group`, which lives during the hook alone, and sets *work; null: done.
   The library takes *work also if the hook returns an error. */
enum { TUTTI_HOOK_ALL_REDUCE = 0, TUTTI_HOOK_NOOP = 1, TUTTI_HOOK_FP16 = 2, TUTTI_HOOK_BF16 = 3 };
typedef struct tutti_bucket {
  size_t size;
  const tutti_array* buffer;
  int32_t index;
  int32_t count;
  int64_t step;
  double divisor;
  const char* name; /* For tutti_call_options. */
} tutti_bucket;
typedef tutti_status (*tutti_hook)(void* context, tutti_group* group, const tutti_bucket* bucket,
                                   tutti_work** work);
tutti_status tutti_reducer_set_hook(tutti_reducer* reducer, int32_t hook);
tutti_status tutti_reducer_set_own_hook(tutti_reducer* reducer, tutti_hook hook, void* context);

/* ---- Metrics over the rows of all ranks: tutti/metrics.hpp. ---- */

/* scores and targets are [n] or [n, 1]; weights may be null. Arrays of the result, f64: 0 AUROC and
   average precision, 1 the recall for each of `precisions`, 2 the score for each of `quantiles`. */
tutti_status tutti_binary_metrics(tutti_group* group, const tutti_array* scores,
                                  const tutti_array* targets, const tutti_array* weights,
                                  const double* precisions, size_t precision_count,
                                  const double* quantiles, size_t quantile_count,
                                  const tutti_call_options* options, tutti_result** result);
/* Writes the `count` quantiles of an array of any shape to *values. */
tutti_status tutti_quantiles(tutti_group* group, const tutti_array* array, const double* quantiles,
                             size_t count, const tutti_call_options* options, double* values);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
