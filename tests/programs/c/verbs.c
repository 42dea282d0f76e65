/* Every verb, blocking and async, and gathers of unknown sizes. Each rank checks its own result. */
#include "check.h"

static void finish(tutti_work* work) {
  OK(tutti_work_wait(work));
  OK(tutti_work_free(work));
}

/* Calls a verb in both forms. `work` is null in the first round. */
#define ROUNDS                \
  tutti_work* pending = NULL; \
  tutti_work** work = NULL;   \
  for (int round = 0; round < 2; ++round, work = &pending)
#define CALL(verb, ...)                                  \
  do {                                                   \
    pending = NULL;                                      \
    OK(tutti_##verb(w->group, __VA_ARGS__, NULL, work)); \
    EXPECT((pending != NULL) == (work != NULL));         \
    if (pending != NULL) finish(pending);                \
  } while (0)

#define GATHER(verb, ...)                                         \
  do {                                                            \
    pending = NULL;                                               \
    OK(tutti_##verb(w->group, __VA_ARGS__, NULL, &result, work)); \
    if (pending != NULL) finish(pending);                         \
  } while (0)

static tutti_array f32(const float* data, int64_t n) {
  return tutti_vector(data, TUTTI_F32, n);
}

/* x -> m x + c, as a complex number. The composition is associative but not commutative. */
static void compose(const void* in, void* inout, int64_t count, uint8_t dtype, void* context) {
  const double* lower = in;
  double* higher = inout;
  (void)context;
  EXPECT(dtype == TUTTI_COMPLEX128);
  for (int64_t i = 0; i < 2 * count; i += 2) {
    higher[i + 1] += higher[i] * lower[i + 1];
    higher[i] *= lower[i];
  }
}

static void test_reductions(const world* w) {
  const float sum = (float)(w->size * (w->size + 1) / 2);
  ROUNDS {
    float in[3] = {(float)w->rank + 1, 2, -1}, out[3];
    tutti_array a = f32(in, 3), b = f32(out, 3);
    CALL(all_reduce, &a, &b, TUTTI_SUM);
    EXPECT(out[0] == sum && out[1] == (float)(2 * w->size) && out[2] == (float)-w->size);
    CALL(all_reduce, &a, &b, TUTTI_MAX);
    EXPECT(out[0] == (float)w->size && out[2] == -1);
    memset(out, 0, sizeof(out));
    CALL(reduce, &a, w->rank == w->size - 1 ? &b : NULL, w->size - 1, TUTTI_AVG);
    EXPECT(out[1] == (w->rank == w->size - 1 ? 2.0F : 0.0F));
    CALL(scan, &a, &b, TUTTI_SUM);
    EXPECT(out[0] == (float)((w->rank + 1) * (w->rank + 2) / 2));
    CALL(exclusive_scan, &a, &b, TUTTI_SUM);
    EXPECT(out[0] == (float)(w->rank * (w->rank + 1) / 2));
    CALL(all_reduce, &a, &a, TUTTI_SUM);
    EXPECT(in[0] == sum);
    pending = NULL;
    OK(tutti_barrier(w->group, NULL, work));
    if (pending != NULL) finish(pending);
  }
  OK(tutti_monitored_barrier(w->group, NULL));
}

static void test_reduce_options(const world* w) {
  double map[2] = {(double)w->rank + 2, 1}, m = 1, c = 0;
  tutti_array a = tutti_vector(map, TUTTI_COMPLEX128, 1);
  float x[1] = {1};
  tutti_array b = f32(x, 1);
  tutti_call_options options;
  tutti_work* work = NULL;
  for (int32_t r = 0; r < w->size; ++r) {
    c = (r + 2) * c + 1;
    m *= r + 2;
  }
  TUTTI_INIT(options);
  options.reduce = compose;
  options.name = "maps";
  OK(tutti_all_reduce(w->group, &a, &a, TUTTI_CUSTOM, &options, NULL));
  EXPECT(map[0] == m && map[1] == c);
  map[0] = w->rank + 2;
  map[1] = 1;
  OK(tutti_all_reduce(w->group, &a, &a, TUTTI_CUSTOM, &options, &work));
  finish(work);
  EXPECT(map[0] == m && map[1] == c);

  TUTTI_INIT(options);
  options.scale = w->rank + 1;
  options.order_fixed = 1;
  OK(tutti_all_reduce(w->group, &b, &b, TUTTI_PREMUL_SUM, &options, NULL));
  EXPECT(x[0] == (float)(w->size * (w->size + 1) / 2));

  TUTTI_INIT(options);
  options.reproducible = 1;
  float zero[1] = {-0.0F};  // The left fold keeps the sign.
  tutti_array z = tutti_vector(zero, TUTTI_F32, 1);
  OK(tutti_all_reduce(w->group, &z, &z, TUTTI_SUM, &options, NULL));
  EXPECT(1 / zero[0] > 0);
  FAILS(tutti_all_reduce(w->group, &z, &z, TUTTI_PROD, &options, NULL), TUTTI_UNSUPPORTED,
        "prod of f32");
  TUTTI_INIT(options);

  int32_t whole[1] = {w->rank};
  tutti_array i = tutti_vector(whole, TUTTI_I32, 1);
  FAILS(tutti_all_reduce(w->group, &i, &i, TUTTI_AVG, NULL, NULL), TUTTI_INVALID_ARGUMENT,
        "integer_avg");
  options.integer_avg = 1;
  OK(tutti_all_reduce(w->group, &i, &i, TUTTI_AVG, &options, NULL));
  EXPECT(whole[0] == (w->size - 1) / 2);
}

static void test_moves(const world* w) {
  int64_t counts[MAX_RANKS], total = 0, before = 0;
  for (int32_t r = 0; r < w->size; ++r) {
    counts[r] = r + 1;
    total += r + 1;
    if (r < w->rank) before += r + 1;
  }
  ROUNDS {
    float x[2] = {(float)w->rank, 7};
    tutti_array data = f32(x, 2);
    CALL(broadcast, &data, w->size - 1);
    EXPECT(x[0] == (float)(w->size - 1));

    float own[MAX_RANKS], all[MAX_RANKS * MAX_RANKS];
    for (int32_t i = 0; i <= w->rank; ++i) own[i] = (float)(10 * w->rank + i);
    tutti_array mine = f32(own, w->rank + 1), whole = f32(all, total);
    CALL(all_gather, &mine, &whole, counts);
    EXPECT(all[total - 1] == (float)(10 * (w->size - 1) + w->size - 1));
    memset(all, 0, sizeof(all));
    CALL(gather, &mine, w->rank == 0 ? &whole : NULL, 0, counts);
    EXPECT(all[total - 1] == (w->rank == 0 ? (float)(11 * (w->size - 1)) : 0.0F));
    CALL(scatter, w->rank == 0 ? &whole : NULL, &mine, 0, counts);
    EXPECT(own[w->rank] == (float)(11 * w->rank));
    for (int64_t i = 0; i < total; ++i) all[i] = (float)i;
    CALL(reduce_scatter, &whole, &mine, counts, TUTTI_SUM);
    EXPECT(own[0] == (float)(before * w->size));

    /* Rank r sends itself and every other rank r + 1 elements. */
    int64_t send[MAX_RANKS];
    float blocks[MAX_RANKS * MAX_RANKS], got[MAX_RANKS * MAX_RANKS];
    for (int32_t r = 0; r < w->size; ++r) send[r] = w->rank + 1;
    for (int32_t i = 0; i < w->size * (w->rank + 1); ++i) blocks[i] = (float)w->rank;
    tutti_array from = f32(blocks, w->size * (w->rank + 1)), to = f32(got, total);
    CALL(all_to_all, &from, &to, send, counts);
    EXPECT(got[0] == 0 && got[total - 1] == (float)(w->size - 1));

    tutti_array ins[MAX_RANKS], outs[MAX_RANKS];
    float cells[MAX_RANKS];
    for (int32_t r = 0; r < w->size; ++r) {
      ins[r] = f32(blocks, 1);
      outs[r] = f32(cells + r, 1);
    }
    CALL(all_to_all_list, ins, outs);
    EXPECT(cells[w->size - 1] == (float)(w->size - 1));
    memset(cells, 0, sizeof(cells));
    CALL(all_gather_list, &ins[0], outs);
    EXPECT(cells[w->size - 1] == (float)(w->size - 1));
  }
}

static void test_messages(const world* w) {
  const int32_t next = (w->rank + 1) % w->size, last = (w->rank + w->size - 1) % w->size;
  float x[1] = {(float)w->rank}, y[1] = {-1};
  tutti_array a = f32(x, 1), b = f32(y, 1);
  tutti_work *sent = NULL, *received = NULL;
  int32_t source = -1, any = 0;
  ROUNDS {
    CALL(sendrecv, &a, next, &b, last, 3);
    EXPECT(y[0] == (float)last);
  }
  OK(tutti_send(w->group, &a, next, 4, NULL, &sent));
  OK(tutti_recv(w->group, &b, last, 4, &source, NULL, NULL));
  EXPECT(source == last && y[0] == (float)last);
  finish(sent);
  OK(tutti_group_supports(w->group, TUTTI_OP_RECV_ANY, TUTTI_F32, TUTTI_SUM, &any));
  if (!any) return;
  source = -1;
  OK(tutti_recv(w->group, &b, TUTTI_ANY_PEER, 5, &source, NULL, &received));
  OK(tutti_send(w->group, &a, next, 5, NULL, &sent));
  finish(received);
  finish(sent);
  EXPECT(source == last);
}

void test_verbs(const world* w) {
  test_reductions(w);
  test_reduce_options(w);
  test_moves(w);
  test_messages(w);
}

static void test_mean(const world* w) {
  double mean = 0;
  OK(tutti_global_mean(w->group, w->rank, 2, NULL, &mean));
  EXPECT(mean == (double)(w->size - 1) / 4);
}

static tutti_array array_of(tutti_result* result, size_t index) {
  tutti_array array;
  TUTTI_INIT(array);
  OK(tutti_result_array(result, index, &array));
  return array;
}

static void test_gathers(const world* w) {
  const int32_t n = w->rank + 1;
  const int32_t total = w->size * (w->size + 1) / 2;
  int64_t counts[MAX_RANKS], sends[MAX_RANKS];
  float x[2 * MAX_RANKS * MAX_RANKS];
  for (int i = 0; i < 2 * MAX_RANKS * MAX_RANKS; ++i) x[i] = (float)w->rank;
  OK(tutti_exchange_rows(w->group, n, NULL, counts));
  for (int32_t r = 0; r < w->size; ++r) {
    EXPECT(counts[r] == r + 1);
    sends[r] = n;
  }
  ROUNDS {
    tutti_array local = f32(x, 2 * n), got, whole = f32(x, total), in = f32(x, n * w->size);
    tutti_result* result = NULL;
    const int64_t* rows = NULL;
    size_t count = 0;
    local.ndim = 2;
    local.dims[0] = n;
    local.dims[1] = 2;
    GATHER(all_gather_rows, &local, 1, round == 0 ? NULL : counts);
    got = array_of(result, 0);
    EXPECT(got.ndim == 2 && got.dims[0] == total && got.dims[1] == 2 && got.dtype == TUTTI_F32);
    EXPECT(((float*)got.data)[2 * total - 1] == (float)(w->size - 1));
    OK(tutti_result_rows(result, &rows, &count));
    EXPECT(count == (size_t)w->size && rows[w->size - 1] == w->size);
    OK(tutti_result_free(result));

    GATHER(all_gather_padded, &local, -5, NULL);
    got = array_of(result, 0);
    EXPECT(got.ndim == 3 && got.dims[0] == w->size && got.dims[1] == w->size);
    EXPECT(w->size == 1 || ((float*)got.data)[2] == -5);
    OK(tutti_result_free(result));

    GATHER(gather_rows, &local, 0, NULL);
    EXPECT(array_of(result, 0).dims[0] == (w->rank == 0 ? total : 0));
    OK(tutti_result_free(result));

    GATHER(reduce_scatter_rows, &whole, counts, TUTTI_MAX);
    got = array_of(result, 0);
    EXPECT(got.dims[0] == n && ((float*)got.data)[0] == (float)(w->size - 1));
    OK(tutti_result_free(result));

    GATHER(all_to_all_rows, &in, sends);
    got = array_of(result, 0);
    EXPECT(got.dims[0] == total && ((float*)got.data)[total - 1] == (float)(w->size - 1));
    OK(tutti_result_free(result));
  }
}

/* Functions with a blocking form alone. */
static void test_lists(const world* w) {
  const int32_t n = w->rank + 1;
  int64_t ids[MAX_RANKS], counts[MAX_RANKS];
  float x[MAX_RANKS * MAX_RANKS];
  char text[8];
  tutti_array both[2], got;
  tutti_result* result = NULL;
  const int64_t* rows = NULL;
  size_t count = 0;
  for (int i = 0; i < MAX_RANKS * MAX_RANKS; ++i) x[i] = (float)i;
  for (int32_t r = 0; r < w->size; ++r) {
    ids[r] = 100 * w->rank + r;
    counts[r] = r + 1;
  }
  both[0] = tutti_vector(ids, TUTTI_I64, n);
  both[1] = f32(x, n);
  OK(tutti_all_gather_rows(w->group, both, 2, NULL, NULL, &result, NULL));
  OK(tutti_result_count(result, &count));
  EXPECT(count == 2);
  got = array_of(result, 0);
  EXPECT(((int64_t*)got.data)[got.dims[0] - 1] == 101 * (w->size - 1));
  OK(tutti_result_free(result));

  OK(tutti_gather_all_tensors(w->group, both, w->rank == 0 ? 1 : 2, NULL, &result));
  OK(tutti_result_count(result, &count));
  EXPECT(count == (size_t)(2 * w->size - 1));
  OK(tutti_result_rows(result, &rows, &count));
  EXPECT(rows[0] == 1 && count == (size_t)w->size);
  EXPECT(array_of(result, (size_t)(2 * w->size - 2)).dtype ==
         (w->size == 1 ? TUTTI_I64 : TUTTI_F32));
  OK(tutti_result_free(result));

  got = f32(x, w->size * (w->size + 1) / 2);
  OK(tutti_scatter_rows(w->group, w->rank == 0 ? &got : NULL, 0, w->rank == 0 ? counts : NULL, NULL,
                        &result));
  got = array_of(result, 0);
  EXPECT(got.dims[0] == n && ((float*)got.data)[0] == (float)(w->rank * n / 2));
  OK(tutti_result_free(result));

  snprintf(text, sizeof(text), "rank %d", w->rank);
  OK(tutti_all_gather_bytes(w->group, text, strlen(text), NULL, &result));
  got = array_of(result, (size_t)(w->size - 1));
  text[5] = (char)('0' + w->size - 1);
  EXPECT(got.dims[0] == 6 && memcmp(got.data, text, 6) == 0);
  OK(tutti_result_free(result));
  OK(tutti_broadcast_bytes(w->group, w->rank == 0 ? "hello" : NULL, w->rank == 0 ? 5 : 0, 0, NULL,
                           &result));
  got = array_of(result, 0);
  EXPECT(got.dims[0] == 5 && memcmp(got.data, "hello", 5) == 0);
  OK(tutti_result_free(result));
}

void test_rows(const world* w) {
  test_gathers(w);
  test_lists(w);
  test_mean(w);
}
