/* Calls that are refused: handles are null afterwards, null lists and handles that come twice are
   errors, and so are options that are neither one thing nor the other. Each rank on its own. */
#include "check.h"

static int not_a_handle;
/* A call that fails sets its out-handle to null. */
#define NULLS(out, call)          \
  do {                            \
    (out) = (void*)&not_a_handle; \
    EXPECT((call) != TUTTI_OK);   \
    EXPECT((void*)(out) == NULL); \
  } while (0)
/* Both handles of a gather. */
#define NULLS_BOTH(call)         \
  do {                           \
    work = (void*)&not_a_handle; \
    NULLS(result, call);         \
    EXPECT(work == NULL);        \
  } while (0)

static void test_null_works(const tutti_array* a) {
  tutti_work *work = NULL, *none[1] = {NULL};
  tutti_result* result = NULL;
  NULLS(work, tutti_all_reduce(NULL, a, a, TUTTI_SUM, NULL, &work));
  NULLS(work, tutti_broadcast(NULL, a, 0, NULL, &work));
  NULLS(work, tutti_reduce(NULL, a, a, 0, TUTTI_SUM, NULL, &work));
  NULLS(work, tutti_all_gather(NULL, a, a, NULL, NULL, &work));
  NULLS(work, tutti_all_gather_list(NULL, a, a, NULL, &work));
  NULLS(work, tutti_reduce_scatter(NULL, a, a, NULL, TUTTI_SUM, NULL, &work));
  NULLS(work, tutti_all_to_all(NULL, a, a, NULL, NULL, NULL, &work));
  NULLS(work, tutti_all_to_all_list(NULL, a, a, NULL, &work));
  NULLS(work, tutti_gather(NULL, a, a, 0, NULL, NULL, &work));
  NULLS(work, tutti_scatter(NULL, a, a, 0, NULL, NULL, &work));
  NULLS(work, tutti_scan(NULL, a, a, TUTTI_SUM, NULL, &work));
  NULLS(work, tutti_exclusive_scan(NULL, a, a, TUTTI_SUM, NULL, &work));
  NULLS(work, tutti_barrier(NULL, NULL, &work));
  NULLS(work, tutti_send(NULL, a, 0, 0, NULL, &work));
  NULLS(work, tutti_recv(NULL, a, 0, 0, NULL, NULL, &work));
  NULLS(work, tutti_sendrecv(NULL, a, 0, a, 0, 0, NULL, &work));
  NULLS(work, tutti_work_all(none, 1, &work));
  NULLS(work, tutti_coalesce_launch(NULL, &work));
  /* The out-parameter of the result is missing. */
  NULLS(work, tutti_all_gather_rows(NULL, a, 1, NULL, NULL, NULL, &work));
  NULLS(work, tutti_all_gather_rows(NULL, a, 2, NULL, NULL, NULL, &work));
  NULLS(work, tutti_all_gather_padded(NULL, a, 0, NULL, NULL, NULL, &work));
  NULLS(work, tutti_gather_rows(NULL, a, 0, NULL, NULL, NULL, &work));
  NULLS(work, tutti_reduce_scatter_rows(NULL, a, NULL, TUTTI_SUM, NULL, NULL, &work));
  NULLS(work, tutti_all_to_all_rows(NULL, a, NULL, NULL, NULL, &work));
  NULLS_BOTH(tutti_all_gather_rows(NULL, a, 1, NULL, NULL, &result, &work));
  NULLS_BOTH(tutti_all_gather_rows(NULL, a, 2, NULL, NULL, &result, &work));
  NULLS_BOTH(tutti_all_gather_padded(NULL, a, 0, NULL, NULL, &result, &work));
  NULLS_BOTH(tutti_gather_rows(NULL, a, 0, NULL, NULL, &result, &work));
  NULLS_BOTH(tutti_reduce_scatter_rows(NULL, a, NULL, TUTTI_SUM, NULL, &result, &work));
  NULLS_BOTH(tutti_all_to_all_rows(NULL, a, NULL, NULL, &result, &work));
}

static void test_null_results(const tutti_array* a) {
  tutti_result* result = NULL;
  NULLS(result, tutti_all_gather_rows(NULL, a, 1, NULL, NULL, &result, NULL));
  NULLS(result, tutti_all_gather_rows(NULL, a, 2, NULL, NULL, &result, NULL));
  NULLS(result, tutti_all_gather_padded(NULL, a, 0, NULL, NULL, &result, NULL));
  NULLS(result, tutti_scatter_rows(NULL, a, 0, NULL, NULL, &result));
  NULLS(result, tutti_gather_all_tensors(NULL, a, 1, NULL, &result));
  NULLS(result, tutti_all_gather_bytes(NULL, "", 0, NULL, &result));
  NULLS(result, tutti_broadcast_bytes(NULL, "", 0, 0, NULL, &result));
  NULLS(result, tutti_group_trace(NULL, &result));
  NULLS(result, tutti_allocate(NULL, a, 0, &result));
  NULLS(result, tutti_store_get(NULL, "k", 0, &result));
  NULLS(result, tutti_store_compare_set(NULL, "k", "", 0, "", 0, &result));
  NULLS(result, tutti_binary_metrics(NULL, a, a, NULL, NULL, 0, NULL, 0, NULL, &result));
}

static void test_null_objects(const tutti_array* a) {
  const char* members[1] = {"none"};
  const int32_t zero = 0;
  int32_t port = -5;
  tutti_group_options options;
  tutti_group *group = NULL, *both[1] = {NULL};
  tutti_store* store = NULL;
  tutti_store_server* server = NULL;
  tutti_reducer* reducer = NULL;
  tutti_coalesce* calls = NULL;
  tutti_registration* registration = NULL;
  TUTTI_INIT(options);
  options.size = 1;
  NULLS(group, tutti_init(&options, &group));
  NULLS(group, tutti_group_create(&options, &group));
  NULLS(both[0], tutti_group_create_all(&options, 1, both));
  NULLS(group, tutti_group_reconfigure(&options, "none", members, 1, &group));
  NULLS(group, tutti_group_share(NULL, &group));
  NULLS(group, tutti_group_split(NULL, 0, 0, NULL, &group));
  NULLS(group, tutti_group_subset(NULL, &zero, 1, NULL, &group));
  NULLS(group, tutti_group_shrink(NULL, &zero, 1, 0, &group));
  NULLS(store, tutti_store_create(NULL, &store));
  NULLS(store, tutti_store_open("none://x", 0, &store));
  NULLS(store, tutti_store_prefix(NULL, "x", &store));
  NULLS(server, tutti_store_serve(NULL, &port, &server));
  NULLS(reducer, tutti_reducer_create(NULL, NULL, 0, NULL, 0, NULL, &reducer));
  NULLS(calls, tutti_coalesce_begin(both, 1, &calls));
  NULLS(registration, tutti_register_memory(NULL, a, NULL, &registration));
}

#define REFUSED(call, words) FAILS(call, TUTTI_INVALID_ARGUMENT, words)

static void test_null_lists(tutti_group* alone, tutti_store* store, const tutti_array* a) {
  const tutti_array targets = tutti_vector("\0\1\0\1", TUTTI_U8, 4);
  tutti_group_options options;
  tutti_group* group = NULL;
  tutti_work* work = NULL;
  tutti_coalesce* calls = NULL;
  tutti_result* result = NULL;
  tutti_reducer* reducer = NULL;
  double value = 0;
  TUTTI_INIT(options);
  REFUSED(tutti_coalesce_begin(NULL, 1, &calls), "the list of groups is null");
  REFUSED(tutti_work_all(NULL, 1, &work), "the list of works is null");
  REFUSED(tutti_group_subset(alone, NULL, 1, NULL, &group), "the list of ranks is null");
  REFUSED(tutti_group_shrink(alone, NULL, 1, 0, &group), "the list of lost ranks is null");
  REFUSED(tutti_group_reconfigure(&options, "a", NULL, 1, &group), "the list of members is null");
  REFUSED(tutti_group_create_all(NULL, 1, &group), "the list of options is null");
  REFUSED(tutti_quantiles(alone, a, NULL, 1, NULL, &value), "the list of quantiles is null");
  REFUSED(tutti_binary_metrics(alone, a, &targets, NULL, NULL, 1, NULL, 0, NULL, &result),
          "the list of precisions is null");
  REFUSED(tutti_binary_metrics(alone, a, &targets, NULL, NULL, 0, NULL, 1, NULL, &result),
          "the list of quantiles is null");
  REFUSED(tutti_all_gather_list(alone, a, NULL, NULL, NULL), "a list of arrays is null");
  REFUSED(tutti_gather_all_tensors(alone, NULL, 1, NULL, &result), "a list of arrays is null");
  REFUSED(tutti_reducer_create(alone, NULL, 1, NULL, 0, NULL, &reducer),
          "a list of parameters is null");
  REFUSED(tutti_all_gather_bytes(alone, NULL, 8, NULL, &result), "a list of bytes is null");
  REFUSED(tutti_broadcast_bytes(alone, NULL, 8, 0, NULL, &result), "a list of bytes is null");
  REFUSED(tutti_store_set(store, "k", NULL, 4), "a list of bytes is null");
  REFUSED(tutti_store_compare_set(store, "k", NULL, 4, "", 0, &result), "a list of bytes is null");
  REFUSED(tutti_store_compare_set(store, "k", "", 0, NULL, 4, &result), "a list of bytes is null");
  REFUSED(tutti_bytes_set(NULL, NULL, 4), "a list of bytes is null");
  OK(tutti_store_set(store, "empty", NULL, 0)); /* An empty list may be null. */
}

/* A handle that is taken twice is freed once. */
static void test_twice(tutti_group* alone, const tutti_array* a) {
  tutti_work *works[3] = {NULL, NULL, NULL}, *all = NULL;
  OK(tutti_all_reduce(alone, a, a, TUTTI_SUM, NULL, &works[0]));
  OK(tutti_barrier(alone, NULL, &works[1]));
  works[2] = works[0];
  REFUSED(tutti_work_all(works, 3, &all), "twice");
  EXPECT(all == NULL);
  OK(tutti_work_all(works, 2, &all)); /* They were not taken. */
  OK(tutti_work_wait(all));
  OK(tutti_work_free(all));
}

static void test_options(tutti_group* alone) {
  tutti_group_options options;
  tutti_group* group = NULL;
  int32_t yes = -1;
  const int32_t unknown[] = {-3, 4, 15, 19, 99, 256};
  TUTTI_INIT(options);
  options.rank = 3;
  REFUSED(tutti_group_create(&options, &group), "rank is 3, but ranks is 0");
  REFUSED(tutti_init(&options, &group), "rank is 3, but ranks is 0");
  for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); ++i) {
    OK(tutti_group_supports(alone, unknown[i], TUTTI_F32, TUTTI_SUM, &yes));
    EXPECT(yes == 0);
  }
  OK(tutti_group_supports(alone, TUTTI_OP_BROADCAST, 99, TUTTI_SUM, &yes));
  EXPECT(yes == 0);
  OK(tutti_group_supports(alone, TUTTI_OP_ALL_REDUCE, TUTTI_F32, 99, &yes));
  EXPECT(yes == 0);
  OK(tutti_group_supports(alone, TUTTI_OP_RECV, TUTTI_F32, TUTTI_SUM, &yes));
  EXPECT(yes == 1);

}

static void test_last_error(void) {
  char before[256];
  tutti_error parts;
  TUTTI_INIT(parts);
  REFUSED(tutti_barrier(NULL, NULL, NULL), "the group is null");
  strncpy(before, tutti_last_error(), sizeof(before) - 1);
  before[sizeof(before) - 1] = '\0';
  /* An error of the function that reports does not replace what it reports. */
  EXPECT(tutti_last_error_parts(NULL) == TUTTI_INVALID_ARGUMENT);
  EXPECT(strcmp(tutti_last_error(), before) == 0);
  OK(tutti_last_error_parts(&parts));
  EXPECT(strcmp(parts.message, "the group is null") == 0);
}

void test_refusals(const world* w) {
  float x[4] = {1, 2, 3, 4};
  const tutti_array a = tutti_vector(x, TUTTI_F32, 4);
  tutti_group* alone = NULL;
  tutti_store* store = NULL;
  (void)w;
  OK(tutti_group_create(NULL, &alone));
  OK(tutti_store_open("memory://refusals", 0, &store));
  test_null_works(&a);
  test_null_results(&a);
  test_null_objects(&a);
  test_null_lists(alone, store, &a);
  test_twice(alone, &a);
  test_options(alone);
  test_last_error();
  OK(tutti_store_free(store));
  OK(tutti_group_free(alone));
}
