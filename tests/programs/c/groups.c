/* Works, coalesced calls, sub-groups, errors, and structs of other sizes. */
#include <pthread.h>

#include "check.h"

static tutti_array vector_of(const float* data, int64_t n) {
  return tutti_vector(data, TUTTI_F32, n);
}

tutti_group* make_breakable(const world* w, const char* name) {
  tutti_group_options options;
  tutti_group* group = NULL;
  if (w->store == NULL) {
    if (strcmp(w->backend, "gloo") != 0) OK(tutti_group_split(w->group, 0, 0, NULL, &group));
    return group;
  }
  TUTTI_INIT(options);
  options.backend = w->backend;
  options.store = w->store;
  options.name = name;
  options.rank = w->rank;
  options.ranks = w->size;
  OK(tutti_group_create(&options, &group));
  OK(tutti_barrier(w->group, NULL, NULL)); /* All ranks have made it. */
  return group;
}

typedef struct ended {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int count;
  tutti_status status;
} ended;

static void on_done(void* context, tutti_status status, const char* text) {
  ended* e = context;
  pthread_mutex_lock(&e->mutex);
  EXPECT((status == TUTTI_OK) == (text == NULL));
  e->status = status;
  ++e->count;
  pthread_cond_signal(&e->changed);
  pthread_mutex_unlock(&e->mutex);
}

static void wait_for(ended* e, int count) {
  pthread_mutex_lock(&e->mutex);
  while (e->count < count) pthread_cond_wait(&e->changed, &e->mutex);
  pthread_mutex_unlock(&e->mutex);
}

static tutti_status doubled(void* context) {
  float* x = context;
  x[0] *= 2;
  return TUTTI_OK;
}
static tutti_status refuses(void* context) {
  (void)context;
  return TUTTI_UNSUPPORTED;
}

void test_works(const world* w) {
  float x[1] = {1}, y[2] = {(float)w->rank, 0};
  tutti_array a = vector_of(x, 1), b = vector_of(y, 2);
  tutti_work *first = NULL, *second = NULL, *both[2];
  tutti_coalesce* calls = NULL;
  ended e = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, TUTTI_ABORTED};
  int32_t done = 0;

  OK(tutti_all_reduce(w->group, &a, &a, TUTTI_SUM, NULL, &first));
  OK(tutti_work_then(first, doubled, x));
  OK(tutti_work_on_done(first, on_done, &e));
  OK(tutti_work_wait_for(first, -1, &done));
  EXPECT(done);
  OK(tutti_work_wait(first));
  OK(tutti_work_done(first, &done));
  EXPECT(done && x[0] == (float)(2 * w->size) && e.count == 1 && e.status == TUTTI_OK);
  OK(tutti_work_free(first));

  OK(tutti_barrier(w->group, NULL, &first));
  OK(tutti_work_then(first, refuses, NULL));
  FAILS(tutti_work_wait(first), TUTTI_UNSUPPORTED, "of tutti_work_then returned 4 (unsupported)");
  OK(tutti_work_free(first)); /* Collected, so the group works on. */

  OK(tutti_broadcast(w->group, &b, 0, NULL, &both[0]));
  OK(tutti_barrier(w->group, NULL, &both[1]));
  OK(tutti_work_all(both, 2, &first));
  OK(tutti_work_block_stream(first, NULL));
  OK(tutti_work_wait(first));
  OK(tutti_work_free(first));
  EXPECT(y[0] == 0);

  OK(tutti_barrier(w->group, NULL, &first));
  OK(tutti_work_on_done(first, on_done, &e));
  OK(tutti_work_detach(first));
  wait_for(&e, 2);

  x[0] = 1;
  y[0] = 3;
  OK(tutti_coalesce_begin(&w->group, 1, &calls));
  OK(tutti_all_reduce(w->group, &a, &a, TUTTI_SUM, NULL, &first));
  OK(tutti_all_reduce(w->group, &b, &b, TUTTI_MAX, NULL, &second));
  FAILS(tutti_barrier(w->group, NULL, NULL), TUTTI_INVALID_ARGUMENT, "oalesc");
  OK(tutti_coalesce_add(calls, first));
  OK(tutti_coalesce_add(calls, second));
  OK(tutti_coalesce_launch(calls, NULL));
  FAILS(tutti_coalesce_launch(calls, NULL), TUTTI_INVALID_ARGUMENT, "launch() was already called");
  OK(tutti_coalesce_free(calls));
  EXPECT(x[0] == (float)w->size && y[0] == 3);
}

static void test_making(const world* w) {
  char member[TUTTI_MEMBER_BYTES], list[MAX_RANKS][TUTTI_MEMBER_BYTES];
  const char* members[MAX_RANKS];
  tutti_group_options options;
  tutti_group* group = NULL;
  tutti_result* handles = NULL;
  int32_t size = 0;
  if (w->store == NULL) return; /* A launcher made the store. */
  memset(list, 0, sizeof(list));
  OK(tutti_group_new_member(member));
  OK(tutti_all_gather_bytes(w->group, member, strlen(member), NULL, &handles));
  for (int32_t r = 0; r < w->size; ++r) {
    tutti_array handle;
    TUTTI_INIT(handle);
    OK(tutti_result_array(handles, (size_t)r, &handle));
    memcpy(list[r], handle.data, (size_t)handle.dims[0]);
    members[r] = list[r];
  }
  OK(tutti_result_free(handles));
  TUTTI_INIT(options);
  options.backend = w->backend;
  options.store = w->store;
  options.name = "again";
  OK(tutti_group_reconfigure(&options, member, members, (size_t)w->size, &group));
  OK(tutti_group_size(group, &size));
  EXPECT(size == w->size);
  OK(tutti_group_free(group));

  if (w->rank != 0) return;
  tutti_group_options two[2];
  tutti_group* made[2];
  for (int r = 0; r < 2; ++r) {
    two[r] = options;
    two[r].name = "two threads";
    two[r].rank = r;
    two[r].ranks = 2;
  }
  OK(tutti_group_create_all(two, 2, made));
  OK(tutti_group_rank(made[1], &size));
  EXPECT(size == 1);
  OK(tutti_group_free(made[0]));
  OK(tutti_group_free(made[1]));
}

void test_groups(const world* w) {
  const int32_t odd = w->rank % 2, last = w->size - 1;
  int32_t number = -1;
  uint64_t calls = 0;
  int64_t ns = 0;
  const char* text = NULL;
  float x[1] = {1};
  tutti_array a = vector_of(x, 1), block;
  tutti_group *sub = NULL, *same = NULL;
  tutti_result* result = NULL;
  tutti_registration* registration = NULL;

  OK(tutti_group_split(w->group, odd, -w->rank, NULL, &sub));
  OK(tutti_group_rank(sub, &number));
  EXPECT(number == (w->size - 1 - w->rank) / 2);
  OK(tutti_all_reduce(sub, &a, &a, TUTTI_SUM, NULL, NULL));
  OK(tutti_group_size(sub, &number));
  EXPECT(x[0] == (float)number);
  OK(tutti_group_name(sub, &text));
  EXPECT(strstr(text, "/") != NULL);
  OK(tutti_group_share(sub, &same));
  OK(tutti_group_free(sub));
  OK(tutti_barrier(same, NULL, NULL));
  OK(tutti_group_free(same));
  if ((same = make_breakable(w, "aborted")) != NULL) {
    OK(tutti_group_abort(same, "the test wants it"));
    FAILS(tutti_barrier(same, NULL, NULL), TUTTI_ABORTED, "the test wants it");
    OK(tutti_group_shrink(same, NULL, 0, 0, &sub));
    OK(tutti_barrier(sub, NULL, NULL));
    OK(tutti_group_free(same));
    OK(tutti_group_free(sub));
  }
  OK(tutti_group_subset(w->group, &last, 1, NULL, &sub));
  EXPECT((sub != NULL) == (w->rank == last));
  OK(tutti_group_free(sub));

  OK(tutti_group_backend(w->group, &text));
  EXPECT(strcmp(text, w->backend) == 0);
  OK(tutti_group_backend_reason(w->group, &text));
  EXPECT(*text != '\0');
  OK(tutti_group_transport(w->group, &text));
  OK(tutti_group_local_rank(w->group, &number));
  EXPECT(number == w->rank);
  OK(tutti_group_local_size(w->group, &number));
  EXPECT(number == w->size);
  OK(tutti_group_sequence_number(w->group, &calls));
  EXPECT(calls > 0);
  OK(tutti_group_set_timeout(w->group, 60000000000));
  OK(tutti_group_timeout(w->group, &ns));
  EXPECT(ns == 60000000000);
  OK(tutti_group_trace(w->group, &result));
  TUTTI_INIT(block);
  OK(tutti_result_array(result, 0, &block));
  EXPECT(block.dtype == TUTTI_U8 && block.dims[0] > 10);
  OK(tutti_result_free(result));

  block = tutti_vector(NULL, TUTTI_F64, 1000);
  OK(tutti_allocate(w->group, &block, 1, &result));
  OK(tutti_result_array(result, 0, &block));
  EXPECT(block.data != NULL && block.dims[0] == 1000);
  OK(tutti_register_memory(w->group, &block, NULL, &registration));
  OK(tutti_registration_free(registration));
  OK(tutti_result_free(result));
  test_making(w);
}

void test_errors(const world* w) {
  float x[4] = {0, 0, 0, 0};
  tutti_array a = vector_of(x, 4), wrong = a;
  tutti_error parts;
  tutti_group *none = NULL, *sub = NULL;
  tutti_work* work = NULL;
  tutti_call_options options;

  FAILS(tutti_barrier(NULL, NULL, NULL), TUTTI_INVALID_ARGUMENT, "the group is null");
  FAILS(tutti_work_wait(NULL), TUTTI_INVALID_ARGUMENT, "the work is null");
  FAILS(tutti_group_rank(w->group, NULL), TUTTI_INVALID_ARGUMENT, "an out-parameter is null");
  OK(tutti_group_free(NULL));
  OK(tutti_work_free(NULL));
  FAILS(tutti_group_create(
            &(tutti_group_options){.size = sizeof(tutti_group_options), .backend = "none such"},
            &none),
        TUTTI_INVALID_ARGUMENT, "none such");
  EXPECT(none == NULL && strcmp(tutti_status_name(TUTTI_PEER_LOST), "peer_lost") == 0);

  /* Refused by the front, on all ranks alike. */
  wrong.dtype = 99;
  FAILS(tutti_all_reduce(w->group, &wrong, &wrong, TUTTI_SUM, NULL, &work), TUTTI_INVALID_ARGUMENT,
        "dtype");
  EXPECT(work == NULL);
  FAILS(tutti_all_reduce(w->group, &a, &a, -1, NULL, NULL), TUTTI_INVALID_ARGUMENT, "reduce op");
  FAILS(tutti_all_reduce(w->group, &a, NULL, TUTTI_SUM, NULL, NULL), TUTTI_INVALID_ARGUMENT,
        "must be equal");
  wrong = a;
  wrong.ndim = 9;
  FAILS(tutti_broadcast(w->group, &wrong, 0, NULL, NULL), TUTTI_INVALID_ARGUMENT, "9 dimensions");
  FAILS(tutti_result_count(NULL, NULL), TUTTI_INVALID_ARGUMENT, "null");

  if (w->size == 1) return;
  /* The ranks disagree. Everything is refused before data moves, and the group works on. */
  FAILS(tutti_all_reduce(w->group, &a, &a, w->rank == 0 ? TUTTI_MAX : TUTTI_SUM, NULL, NULL),
        TUTTI_MISMATCH, "ranks made different calls");
  TUTTI_INIT(parts);
  OK(tutti_last_error_parts(&parts));
  EXPECT(parts.code == TUTTI_MISMATCH && strcmp(parts.operation, "all_reduce") == 0);
  EXPECT(strcmp(parts.group, "world") == 0 && parts.seq >= 0 && parts.earlier == 0);
  EXPECT(strstr(tutti_last_error(), parts.message) != NULL);
  OK(tutti_barrier(w->group, NULL, NULL));

  /* A rank that is missing: the group breaks, its handle stays valid. */
  if ((sub = make_breakable(w, "late")) == NULL) return;
  TUTTI_INIT(options);
  options.timeout_ns = 50000000;
  if (w->rank != 0) {
    const int64_t rows[MAX_RANKS] = {4, 4, 4, 4};
    tutti_result* result = NULL;
    size_t arrays = 1;
    OK(tutti_all_gather_rows(sub, &a, 1, rows, &options, &result, &work));
    FAILS(tutti_work_wait(work), TUTTI_TIMEOUT, "missing: 0");
    TUTTI_INIT(parts);
    OK(tutti_last_error_parts(&parts));
    EXPECT(parts.missing_count >= 1 && parts.missing[0] == 0);
    OK(tutti_work_wait(work)); /* The error came once; the result stays empty. */
    OK(tutti_result_count(result, &arrays));
    EXPECT(arrays == 0);
    OK(tutti_work_free(work));
    OK(tutti_result_free(result));
    FAILS(tutti_barrier(sub, NULL, NULL), TUTTI_ABORTED, "first cause: timeout");
  }
  OK(tutti_monitored_barrier(w->group, NULL));
  OK(tutti_group_free(sub));
}

void test_structs(const world* w) {
  float x[2] = {(float)w->rank, 1};
  tutti_call_options options;
  struct {
    tutti_call_options known;
    int64_t later;
  } newer;
  struct {
    size_t size;
    tutti_status code;
    int32_t guard;
  } older = {2 * sizeof(size_t) - sizeof(int32_t), 0, 77};
  tutti_array a = vector_of(x, 2);

  /* An older header, whose options had nothing but a name: what lies behind is not read. */
  TUTTI_INIT(options);
  options.size = offsetof(tutti_call_options, timeout_ns);
  options.name = "older";
  options.timeout_ns = -1;
  options.memory = (const tutti_memory*)&x;
  OK(tutti_all_reduce(w->group, &a, &a, TUTTI_SUM, &options, NULL));

  /* An older array with four dimensions. */
  a.size = offsetof(tutti_array, dims) + 4 * sizeof(int64_t);
  a.dims[4] = -7;
  OK(tutti_all_reduce(w->group, &a, &a, TUTTI_SUM, NULL, NULL));

  /* A newer header: fields that this library does not know must be 0. */
  memset(&newer, 0, sizeof(newer));
  newer.known.size = sizeof(newer);
  OK(tutti_barrier(w->group, &newer.known, NULL));
  newer.later = 1;
  FAILS(tutti_barrier(w->group, &newer.known, NULL), TUTTI_UNSUPPORTED, "tutti_abi_version()");
  options.size = 0;
  FAILS(tutti_barrier(w->group, &options, NULL), TUTTI_INVALID_ARGUMENT, "set it with TUTTI_INIT");

  /* A result of an older header is not written behind its end. */
  OK(tutti_last_error_parts((tutti_error*)(void*)&older));
  EXPECT(older.code == TUTTI_INVALID_ARGUMENT && older.guard == 77);
  EXPECT(tutti_abi_version() == TUTTI_ABI_VERSION && strchr(tutti_version(), '.') != NULL);
}
