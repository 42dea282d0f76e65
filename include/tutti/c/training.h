/** @file
   Data-parallel training and metrics of the C ABI: include tutti/c/tutti.h. */
#ifndef TUTTI_C_TRAINING_H
#define TUTTI_C_TRAINING_H

#include <tutti/c/values.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- Data-parallel training: tutti/ddp/gradient_reducer.hpp. ---- */

/** A parameter or a buffer: tutti::ddp::Parameter. Its id is its index in the list. */
typedef struct tutti_parameter {
  size_t size;              /**< sizeof the struct: TUTTI_INIT sets it. */
  const char* name;         /**< Compared between ranks, and shown in errors. */
  const tutti_array* value; /**< Its data may be null: then only its shape counts. */
} tutti_parameter;

/** Options of a reducer, equal on all ranks: tutti::ddp::ReducerOptions. */
typedef struct tutti_reducer_options {
  size_t size;                     /**< sizeof the struct: TUTTI_INIT sets it. */
  int64_t first_bucket_cap;        /**< Bytes; 0: 1 MiB. */
  int64_t bucket_cap;              /**< Bytes; 0: 25 MiB. */
  double divisor;                  /**< Of the sum over ranks; 0: W, the mean. */
  int64_t timeout_ns;              /**< 0: the group's. */
  int32_t find_unused_parameters;  /**< 1: a rank without a gradient contributes zeros. */
  int32_t gradient_as_bucket_view; /**< 1: gradients live in the buckets. */
  int32_t keep_buckets;            /**< 1: rebuild_buckets = false. */
  int32_t skip_step_checks;        /**< 1: check_steps = false. */
  int32_t average_over_rows;       /**< 1: steps end with tutti_reducer_finish_rows(). */
  int32_t order_fixed;             /**< 1: order_fixed of tutti_call_options for the reductions. */
} tutti_reducer_options;

/** Collective: compares parameters, buffers and options, and broadcasts rank 0's values. Parameters
   must live as long as the reducer. Lists are structs of equal size. */
tutti_status tutti_reducer_create(tutti_group* group, const tutti_parameter* parameters,
                                  size_t count, const tutti_parameter* buffers, size_t buffer_count,
                                  const tutti_reducer_options* options, tutti_reducer** reducer);
/** Reports that a gradient is computed. `producer`, on a device: the stream that computes it. */
tutti_status tutti_reducer_mark_ready(tutti_reducer* reducer, size_t id,
                                      const tutti_array* gradient, void* producer);
/** Reports that this rank has no gradient of `id` in this step. */
tutti_status tutti_reducer_mark_unused(tutti_reducer* reducer, size_t id);
/** Collective: ends the step; the marked arrays then hold the reduced gradients. */
tutti_status tutti_reducer_finish(tutti_reducer* reducer);
/** tutti_reducer_finish() with average_over_rows. `rows`: this rank's rows or their weights. */
tutti_status tutti_reducer_finish_rows(tutti_reducer* reducer, double rows);
/** Makes a whole step of zeros, on a rank without a batch. */
tutti_status tutti_reducer_step_empty(tutti_reducer* reducer);
/** 1 opens a scope NoSync, in which marks and finish do nothing, and
 * tutti_reducer_finish_rows() counts its rows alone; 0 closes the innermost one. */
tutti_status tutti_reducer_no_sync(tutti_reducer* reducer, int32_t open);
/** Collective: copies rank 0's buffers to all ranks. `stream`, on a device: their stream. */
tutti_status tutti_reducer_broadcast_buffers(tutti_reducer* reducer, void* stream);
/** Sets the divisor from the next step on; 0: W. Equal on all ranks. */
tutti_status tutti_reducer_set_divisor(tutti_reducer* reducer, double divisor);
/** Collective: goes on over another group. Drops an unfinished step. */
tutti_status tutti_reducer_set_group(tutti_reducer* reducer, tutti_group* group);
/** Writes the place of a gradient in its bucket, which the first finish may move; after a finish it
   may be the marked array. */
tutti_status tutti_reducer_gradient(const tutti_reducer* reducer, size_t id, tutti_array* gradient);
/** 1 after a step that ended without an error, until the next mark. */
tutti_status tutti_reducer_is_reduced(const tutti_reducer* reducer, int32_t* reduced);
/** 1 if any rank had a gradient of `id` in the last step; with skip_step_checks always 1 after
   tutti_reducer_step_empty(). */
tutti_status tutti_reducer_is_used(const tutti_reducer* reducer, size_t id, int32_t* used);
/** Does not communicate. Between a mark and finish it aborts the group. */
tutti_status tutti_reducer_free(tutti_reducer* reducer);

/** The library's hooks: tutti/ddp/hooks.hpp. */
enum { TUTTI_HOOK_ALL_REDUCE = 0, TUTTI_HOOK_NOOP = 1, TUTTI_HOOK_FP16 = 2, TUTTI_HOOK_BF16 = 3 };
/** Gradients that are reduced as one array: tutti::ddp::Bucket. */
typedef struct tutti_bucket {
  size_t size;               /**< sizeof the struct. */
  const tutti_array* buffer; /**< [n]: this rank's gradients; the reduced ones afterwards. */
  int32_t index;             /**< 0 to count - 1, in the order of the launches. */
  int32_t count;             /**< Number of all buckets. */
  int64_t step;              /**< Steps over this group before this one. */
  double divisor;            /**< Of the sum over ranks: the hook divides. */
  const char* name;          /**< For tutti_call_options. */
} tutti_bucket;
/** A hook of the caller's reduces `buffer` in place and divides. It makes async calls on `group`,
   which lives during the hook alone, and sets *work; null: done. The library takes *work also if
   the hook returns an error. */
typedef tutti_status (*tutti_hook)(void* context, tutti_group* group, const tutti_bucket* bucket,
                                   tutti_work** work);
/** Sets one of the library's hooks, between steps; equal on all ranks. */
tutti_status tutti_reducer_set_hook(tutti_reducer* reducer, int32_t hook);
/** Sets a hook of the caller's, between steps. `context` must live while it is set. */
tutti_status tutti_reducer_set_own_hook(tutti_reducer* reducer, tutti_hook hook, void* context);

/* ---- Metrics over the rows of all ranks: tutti/metrics.hpp. ---- */

/** scores and targets are [n] or [n, 1]; weights may be null. Arrays of the result, f64: 0 AUROC
   and average precision, 1 the recall for each of `precisions`, 2 the score for each of
   `quantiles`. */
tutti_status tutti_binary_metrics(tutti_group* group, const tutti_array* scores,
                                  const tutti_array* targets, const tutti_array* weights,
                                  const double* precisions, size_t precision_count,
                                  const double* quantiles, size_t quantile_count,
                                  const tutti_call_options* options, tutti_result** result);
/** Writes the `count` quantiles of an array of any shape to *values. */
tutti_status tutti_quantiles(tutti_group* group, const tutti_array* array, const double* quantiles,
                             size_t count, const tutti_call_options* options, double* values);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
