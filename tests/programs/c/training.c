/* The gradient reducer and the metrics. */
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

void test_metrics(const world* w) {
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
