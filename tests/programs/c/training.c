/* The gradient reducer and the losses: ranks get what one process computes of all rows. */
#include <math.h>

#include "check.h"

static tutti_status count_and_average(void* context, tutti_group* group, const tutti_bucket* bucket,
                                      tutti_work** work) {
  int* calls = context;
  tutti_call_options options;
  TUTTI_INIT(options);
  options.name = bucket->name;
  ++*calls;
  EXPECT(bucket->index < bucket->count && bucket->divisor > 0);
  return tutti_all_reduce(group, bucket->buffer, bucket->buffer, TUTTI_AVG, &options, work);
}

static tutti_status hook_that_fails(void* context, tutti_group* group, const tutti_bucket* bucket,
                                    tutti_work** work) {
  (void)context;
  /* The library takes this Work too: a Work that is not freed keeps the group and its store. */
  const tutti_status started =
      tutti_all_reduce(group, bucket->buffer, bucket->buffer, TUTTI_SUM, NULL, work);
  if (started != TUTTI_OK) return started; /* A peer's hook has failed before. */
  return tutti_reduce(group, bucket->buffer, bucket->buffer, 1000, TUTTI_SUM, NULL, NULL);
}

static void step(const world* w, tutti_reducer* reducer, float* first, float* second) {
  tutti_array a = tutti_vector(first, TUTTI_F32, 3), b = tutti_vector(second, TUTTI_F32, 2);
  for (int i = 0; i < 3; ++i) first[i] = (float)w->rank;
  second[0] = second[1] = 1;
  OK(tutti_reducer_mark_ready(reducer, 1, &b, NULL));
  OK(tutti_reducer_mark_ready(reducer, 0, &a, NULL));
}

void test_reducer(const world* w) {
  float weights[3], bias[2] = {0, 0}, buffer[1] = {(float)w->rank}, g0[3], g1[2];
  const float mean = (float)(w->size - 1) / 2;
  tutti_array values[3], gradient;
  tutti_parameter parameters[2], kept[1];
  tutti_reducer_options options;
  tutti_reducer* reducer = NULL;
  int32_t yes = 0;
  int calls = 0;
  for (int i = 0; i < 3; ++i) weights[i] = (float)w->rank;
  values[0] = tutti_vector(weights, TUTTI_F32, 3);
  values[1] = tutti_vector(bias, TUTTI_F32, 2);
  values[2] = tutti_vector(buffer, TUTTI_F32, 1);
  TUTTI_INIT(parameters[0]);
  parameters[0].name = "weights";
  parameters[0].value = &values[0];
  parameters[1] = parameters[0];
  parameters[1].name = "bias";
  parameters[1].value = &values[1];
  kept[0] = parameters[0];
  kept[0].name = "buffer";
  kept[0].value = &values[2];
  TUTTI_INIT(options);
  options.first_bucket_cap = 8;
  OK(tutti_reducer_create(w->group, parameters, 2, kept, 1, &options, &reducer));
  EXPECT(weights[2] == 0 && buffer[0] == 0); /* Rank 0's. */

  step(w, reducer, g0, g1);
  OK(tutti_reducer_finish(reducer));
  EXPECT(g0[2] == mean && g1[1] == 1);
  OK(tutti_reducer_is_reduced(reducer, &yes));
  EXPECT(yes);
  OK(tutti_reducer_is_used(reducer, 1, &yes));
  EXPECT(yes);
  TUTTI_INIT(gradient);
  OK(tutti_reducer_gradient(reducer, 0, &gradient));
  EXPECT(gradient.dims[0] == 3 && ((float*)gradient.data)[0] == mean);

  buffer[0] = (float)w->rank + 5;
  OK(tutti_reducer_broadcast_buffers(reducer, NULL));
  EXPECT(buffer[0] == 5);
  OK(tutti_reducer_no_sync(reducer, 1));
  step(w, reducer, g0, g1);
  OK(tutti_reducer_finish(reducer));
  OK(tutti_reducer_no_sync(reducer, 0));
  FAILS(tutti_reducer_no_sync(reducer, 0), TUTTI_INVALID_ARGUMENT, "no scope");
  EXPECT(g0[0] == (float)w->rank);
  OK(tutti_reducer_step_empty(reducer));
  OK(tutti_reducer_set_divisor(reducer, 1));
  step(w, reducer, g0, g1);
  OK(tutti_reducer_finish(reducer));
  EXPECT(g1[0] == (float)w->size);

  OK(tutti_reducer_set_hook(reducer, TUTTI_HOOK_BF16));
  step(w, reducer, g0, g1);
  OK(tutti_reducer_finish(reducer));
  EXPECT(g1[0] == (float)w->size);
  FAILS(tutti_reducer_set_hook(reducer, 9), TUTTI_INVALID_ARGUMENT, "hook 9");
  OK(tutti_reducer_set_own_hook(reducer, count_and_average, &calls));
  step(w, reducer, g0, g1);
  OK(tutti_reducer_finish(reducer));
  EXPECT(calls == 2 && g0[0] == mean);
  OK(tutti_reducer_set_group(reducer, w->group));
  OK(tutti_reducer_mark_unused(reducer, 0));
  OK(tutti_reducer_mark_unused(reducer, 1));
  OK(tutti_reducer_finish(reducer));
  OK(tutti_reducer_free(reducer));

  /* Means over rows; then the error of a hook, which breaks the group that the reducer has. */
  tutti_group* own = make_breakable(w, "reducer");
  if (own == NULL) return;
  TUTTI_INIT(options);
  options.average_over_rows = 1;
  OK(tutti_reducer_create(own, parameters, 2, NULL, 0, &options, &reducer));
  step(w, reducer, g0, g1);
  OK(tutti_reducer_finish_rows(reducer, 2));
  EXPECT(g1[0] == 0.5F);
  OK(tutti_reducer_set_own_hook(reducer, hook_that_fails, NULL));
  tutti_array a = tutti_vector(g0, TUTTI_F32, 3), b = tutti_vector(g1, TUTTI_F32, 2);
  tutti_status status = tutti_reducer_mark_ready(reducer, 1, &b, NULL);
  if (status == TUTTI_OK) status = tutti_reducer_mark_ready(reducer, 0, &a, NULL);
  if (status == TUTTI_OK) status = tutti_reducer_finish_rows(reducer, 2);
  EXPECT(status != TUTTI_OK);
  EXPECT(w->size > 1 || strstr(tutti_last_error(), "root is 1000") != NULL);
  OK(tutti_reducer_free(reducer));
  OK(tutti_group_free(own));
}

#define ROWS 8 /* Of each rank. */

typedef struct rows {
  double logits[2 * ROWS * MAX_RANKS];
  double soft[2 * ROWS * MAX_RANKS];
  int64_t targets[ROWS * MAX_RANKS];
} rows;

static void make_batch(const rows* all, int64_t first, int64_t count, int focal, int64_t classes,
                       tutti_array arrays[2], tutti_batch* batch) {
  arrays[0] = tutti_vector(all->logits + first * classes, TUTTI_F64, count);
  arrays[0].ndim = 2;
  arrays[0].dims[1] = classes;
  arrays[1] = tutti_vector(all->targets + first, TUTTI_I64, count);
  if (focal) {
    arrays[1] = arrays[0];
    arrays[1].data = (void*)(all->soft + first * classes);
  }
  TUTTI_INIT(*batch);
  batch->logits = &arrays[0];
  batch->targets = &arrays[1];
}

static void test_kind(const world* w, const rows* all, const char* kind, const char* options,
                      int64_t classes) {
  const int focal = strcmp(kind, "sigmoid_focal") == 0;
  tutti_array arrays[2], whole_arrays[2], gradient, whole_gradient;
  tutti_batch mine, whole;
  tutti_loss *loss = NULL, *alone = NULL;
  tutti_result *result = NULL, *expected = NULL;
  double value = -1, one = -2;
  make_batch(all, w->rank * ROWS, ROWS, focal, classes, arrays, &mine);
  make_batch(all, 0, (int64_t)w->size * ROWS, focal, classes, whole_arrays, &whole);
  OK(tutti_loss_create(kind, options, &loss));
  OK(tutti_loss_create(kind, options, &alone));
  OK(tutti_loss_evaluate(loss, w->group, &mine, NULL, &value, &result));
  OK(tutti_loss_evaluate(alone, NULL, &whole, NULL, &one, &expected));
  EXPECT(fabs(value - one) < 1e-12 && one > 0);
  TUTTI_INIT(gradient);
  TUTTI_INIT(whole_gradient);
  OK(tutti_result_array(result, 0, &gradient));
  OK(tutti_result_array(expected, 0, &whole_gradient));
  EXPECT(gradient.dims[0] == ROWS && gradient.dims[1] == classes && gradient.dtype == TUTTI_F64);
  for (int64_t i = 0; i < ROWS * classes; ++i) {
    const double own = ((double*)gradient.data)[i];
    EXPECT(fabs(own - ((double*)whole_gradient.data)[w->rank * ROWS * classes + i]) < 1e-12);
  }
  if (strcmp(kind, "p_auc_at_budget") == 0) {
    OK(tutti_result_array(result, 3, &gradient));
    EXPECT(gradient.dims[0] == 1 && gradient.dims[1] == 5 && ((double*)gradient.data)[3] > 0);
  }
  OK(tutti_loss_evaluate(loss, w->group, &mine, NULL, &one, NULL)); /* Without arrays. */
  OK(tutti_result_free(result));
  OK(tutti_result_free(expected));
  OK(tutti_loss_free(loss));
  OK(tutti_loss_free(alone));
}

static void test_state(const world* w, const rows* all) {
  tutti_array arrays[2], state, queued;
  tutti_batch batch;
  tutti_loss *loss = NULL, *other = NULL, *first = NULL;
  tutti_result *saved = NULL, *rows_of_queue = NULL;
  int64_t count = 0;
  double number = 0;
  make_batch(all, w->rank * ROWS, ROWS, 0, 1, arrays, &batch);
  OK(tutti_loss_create("smooth_ap", "queue=6 temperature=0.5", &loss));
  OK(tutti_loss_evaluate(loss, w->group, &batch, NULL, NULL, NULL));
  OK(tutti_loss_queued(loss, &count));
  EXPECT(count == 6);
  OK(tutti_loss_set_temperature(loss, 0.25));
  OK(tutti_loss_save(loss, w->group, NULL, &saved));
  TUTTI_INIT(state);
  OK(tutti_result_array(saved, 0, &state));
  OK(tutti_loss_create("smooth_ap", "queue=6", &other));
  OK(tutti_loss_load(other, w->group, state.data, (size_t)state.dims[0]));
  OK(tutti_loss_temperature(other, &number));
  EXPECT(number == 0.25);
  OK(tutti_loss_queued_rows(other, w->group, NULL, &rows_of_queue));
  TUTTI_INIT(queued);
  OK(tutti_result_array(rows_of_queue, 0, &queued));
  EXPECT(queued.ndim == 2 && queued.dims[0] == 6 && queued.dims[1] == 1);
  OK(tutti_result_free(rows_of_queue));
  OK(tutti_loss_set_group(other, w->group, NULL));
  OK(tutti_loss_enqueue(other, w->group, &batch, NULL));
  OK(tutti_loss_reset_queue(other));
  OK(tutti_loss_queued(other, &count));
  EXPECT(count == 0);
  FAILS(tutti_loss_load(other, w->group, "x", 1), TUTTI_INVALID_ARGUMENT, "");
  OK(tutti_result_free(saved));
  OK(tutti_loss_free(other));

  OK(tutti_loss_create("cross_entropy", NULL, &first));
  OK(tutti_loss_create_warm_up(first, loss, "warmup_steps=1 blend_steps=1 temp_start=0.5", &other));
  OK(tutti_loss_start_epoch(other, 0));
  OK(tutti_loss_start_step(other, 1));
  OK(tutti_loss_main_weight(other, &number));
  EXPECT(number == 0.5);
  OK(tutti_loss_evaluate(other, w->group, &batch, NULL, &number, NULL));
  OK(tutti_loss_save(other, w->group, NULL, &saved));
  OK(tutti_result_free(saved));
  OK(tutti_loss_free(other));
}

static void test_metrics(const world* w) {
  /* Rank r has a positive row with the score r + 0.5 and a negative one with the score -r. */
  double scores[2] = {w->rank + 0.5, -w->rank}, found[2];
  const int64_t targets[2] = {1, 0};
  const double half = 0.5, ends[2] = {0, 1};
  tutti_array s = tutti_vector(scores, TUTTI_F64, 2), t = tutti_vector(targets, TUTTI_I64, 2),
              array;
  tutti_result* result = NULL;
  OK(tutti_binary_metrics(w->group, &s, &t, NULL, &half, 1, ends, 2, NULL, &result));
  TUTTI_INIT(array);
  OK(tutti_result_array(result, 0, &array));
  EXPECT(((double*)array.data)[0] == 1 && ((double*)array.data)[1] == 1);
  OK(tutti_result_array(result, 1, &array));
  EXPECT(((double*)array.data)[0] == 1);
  OK(tutti_result_array(result, 2, &array));
  EXPECT(((double*)array.data)[1] == w->size - 0.5);
  OK(tutti_result_free(result));
  OK(tutti_quantiles(w->group, &s, ends, 2, NULL, found));
  EXPECT(found[0] == 1 - w->size && found[1] == w->size - 0.5);
}

void test_losses(const world* w) {
  static const struct {
    const char *kind, *options;
    int64_t classes;
  } kinds[] = {{"smooth_ap", "temperature=0.3 grad_scale=mean", 1},
               {"recall_at_quantile",
                "quantile=0.25 temperature=0.3 interpolation=linear grad_scale=mean", 1},
               {"p_auc_at_budget", "beta=0.5 surrogate=pairwise grad_scale=mean", 1},
               {"cross_entropy",
                " classes=2  weight=1,0.5 label_smoothing=0.1 reduction=sum grad_scale=mean", 2},
               {"sigmoid_focal", "gamma=1.5 alpha=-1 grad_scale=mean", 2},
               {"softmax_focal", "alpha=0.25,0.75 grad_scale=mean", 2}};
  rows all;
  tutti_loss* none = NULL;
  for (int i = 0; i < 2 * ROWS * MAX_RANKS; ++i) {
    all.logits[i] = sin(7.0 * i);
    all.soft[i] = i % 3 == 0;
    all.targets[i / 2] = (i / 2) % 3 == 0;
  }
  for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); ++i)
    test_kind(w, &all, kinds[i].kind, kinds[i].options, kinds[i].classes);
  test_state(w, &all);
  test_metrics(w);
  FAILS(tutti_loss_create("hinge", NULL, &none), TUTTI_INVALID_ARGUMENT, "there are: smooth_ap");
  FAILS(tutti_loss_create("smooth_ap", "temprature=1", &none), TUTTI_INVALID_ARGUMENT,
        "unknown option 'temprature'; there are: threads classes temperature");
  FAILS(tutti_loss_create("smooth_ap", "classes=1.5", &none), TUTTI_INVALID_ARGUMENT,
        "option classes: '1.5' is not a number without a fraction");
  FAILS(tutti_loss_create("smooth_ap", "reduction=max", &none), TUTTI_INVALID_ARGUMENT,
        "'max' is none of: mean sum none");
  FAILS(tutti_loss_create("smooth_ap", "classes", &none), TUTTI_INVALID_ARGUMENT, "name=value");
  FAILS(tutti_loss_create("smooth_ap", "classes=1 classes=2", &none), TUTTI_INVALID_ARGUMENT,
        "occurs twice");
  EXPECT(none == NULL);
}
