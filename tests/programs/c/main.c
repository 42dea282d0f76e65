/* A program in C that checks every function of <tutti/c/tutti.h>.
   usage: c_program BACKEND RANKS   the ranks are threads, over the program's own store
          c_program BACKEND         the ranks are processes of a launcher */
#include <pthread.h>
#include <time.h>

#include "check.h"

/* ---- A store of the program's own: a table, a lock and a condition. ---- */

typedef struct entry {
  char key[512];
  void* value;
  size_t bytes;
} entry;
static struct table {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  entry entries[4096];
  size_t count;
  int destroyed;
} table = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static entry* find(const char* key) {
  for (size_t i = 0; i < table.count; ++i)
    if (strcmp(table.entries[i].key, key) == 0) return &table.entries[i];
  return NULL;
}

static void put(const char* key, const void* value, size_t bytes) {
  entry* e = find(key);
  if (e == NULL) {
    EXPECT(table.count < 4096 && strlen(key) < sizeof(e->key));
    e = &table.entries[table.count++];
    strcpy(e->key, key);
    e->value = NULL;
  }
  free(e->value);
  e->value = malloc(bytes + 1);
  if (bytes > 0) memcpy(e->value, value, bytes);
  ((char*)e->value)[bytes] = '\0';
  e->bytes = bytes;
  pthread_cond_broadcast(&table.changed);
}

static void lock(void* context) {
  EXPECT(context == &table);
  pthread_mutex_lock(&table.mutex);
}
static tutti_status unlocked(tutti_status status) {
  pthread_mutex_unlock(&table.mutex);
  return status;
}

static tutti_status own_set(void* context, const char* key, const void* value, size_t bytes) {
  if (strcmp(key, "refused") == 0) return TUTTI_RESOURCE_EXHAUSTED;
  lock(context);
  put(key, value, bytes);
  return unlocked(TUTTI_OK);
}
static tutti_status own_get(void* context, const char* key, int64_t timeout_ns,
                            tutti_bytes* value) {
  struct timespec until;
  entry* e = NULL;
  clock_gettime(CLOCK_REALTIME, &until);
  if (timeout_ns < 0 || timeout_ns > 300000000000) timeout_ns = 300000000000;
  until.tv_sec += timeout_ns / 1000000000;
  until.tv_nsec += timeout_ns % 1000000000;
  if (until.tv_nsec >= 1000000000) {
    ++until.tv_sec;
    until.tv_nsec -= 1000000000;
  }
  lock(context);
  while ((e = find(key)) == NULL)
    if (timeout_ns == 0 || pthread_cond_timedwait(&table.changed, &table.mutex, &until) != 0)
      return unlocked(TUTTI_TIMEOUT);
  return unlocked(tutti_bytes_set(value, e->value, e->bytes));
}
static tutti_status own_add(void* context, const char* key, int64_t delta, int64_t* sum) {
  char text[32];
  if (strcmp(key, "refused") == 0) return TUTTI_RESOURCE_EXHAUSTED;
  lock(context);
  entry* e = find(key);
  *sum = (e == NULL ? 0 : strtoll(e->value, NULL, 10)) + delta;
  snprintf(text, sizeof(text), "%lld", (long long)*sum);
  put(key, text, strlen(text));
  return unlocked(TUTTI_OK);
}
static tutti_status own_compare_set(void* context, const char* key, const void* expected,
                                    size_t expected_bytes, const void* desired,
                                    size_t desired_bytes, tutti_bytes* value) {
  lock(context);
  entry* e = find(key);
  const int equal =
      e == NULL ? expected_bytes == 0
                : e->bytes == expected_bytes &&
                      (expected_bytes == 0 || memcmp(e->value, expected, expected_bytes) == 0);
  if (equal) put(key, desired, desired_bytes);
  e = find(key);
  return unlocked(e == NULL ? TUTTI_OK : tutti_bytes_set(value, e->value, e->bytes));
}
static tutti_status own_erase(void* context, const char* key, int32_t* existed) {
  lock(context);
  entry* e = find(key);
  *existed = e != NULL;
  if (e != NULL) {
    free(e->value);
    *e = table.entries[--table.count];
  }
  return unlocked(TUTTI_OK);
}
static void own_destroy(void* context) {
  lock(context);
  ++table.destroyed;
  unlocked(TUTTI_OK);
}

tutti_store* make_own_store(void) {
  tutti_store_functions functions;
  tutti_store* store = NULL;
  TUTTI_INIT(functions);
  functions.context = &table;
  functions.set = own_set;
  functions.get = own_get;
  functions.add = own_add;
  functions.compare_set = own_compare_set;
  functions.erase = own_erase;
  functions.destroy = own_destroy;
  OK(tutti_store_create(&functions, &store));
  return store;
}

static void expect_value(tutti_store* store, const char* key, const char* expected) {
  tutti_result* value = NULL;
  tutti_array bytes;
  TUTTI_INIT(bytes);
  OK(tutti_store_get(store, key, -1, &value));
  OK(tutti_result_array(value, 0, &bytes));
  EXPECT((size_t)bytes.dims[0] == strlen(expected) &&
         memcmp(bytes.data, expected, strlen(expected)) == 0);
  OK(tutti_result_free(value));
}

static void test_store(tutti_store* base) {
  tutti_store* store = NULL;
  tutti_result* value = NULL;
  int64_t sum = 0;
  int32_t existed = 0;
  OK(tutti_store_prefix(base, "test/", &store));
  OK(tutti_store_set(store, "a", "1", 1));
  OK(tutti_store_add(store, "a", 41, &sum));
  EXPECT(sum == 42);
  OK(tutti_store_wait(store, "a", 0));
  expect_value(base, "test/a", "42");
  OK(tutti_store_compare_set(store, "a", "42", 2, "x", 1, &value));
  OK(tutti_result_free(value));
  expect_value(store, "a", "x");
  OK(tutti_store_erase(store, "a", &existed));
  EXPECT(existed);
  FAILS(tutti_store_get(store, "a", 0, &value), TUTTI_TIMEOUT, "'a'");
  FAILS(tutti_store_wait(store, "a", 1000000), TUTTI_TIMEOUT, "a'");
  OK(tutti_store_free(store));
}

static void test_stores(void) {
  tutti_store_server* server = NULL;
  tutti_store* store = NULL;
  char address[64];
  int32_t port = 0;
  int64_t sum = 0;
  OK(tutti_store_serve(NULL, &port, &server));
  snprintf(address, sizeof(address), "tcp://127.0.0.1:%d", port);
  OK(tutti_store_open(address, 10000000000, &store));
  test_store(store);
  OK(tutti_store_free(store));
  OK(tutti_store_server_free(server));
  FAILS(tutti_store_open("none://x", 0, &store), TUTTI_UNSUPPORTED, "none");
  store = make_own_store();
  test_store(store);
  FAILS(tutti_store_set(store, "refused", "", 0), TUTTI_RESOURCE_EXHAUSTED,
        "set of tutti_store_functions");
  /* Not the text of the error before it, which has the same code. */
  FAILS(tutti_store_add(store, "refused", 1, &sum), TUTTI_RESOURCE_EXHAUSTED,
        "add of tutti_store_functions");
  OK(tutti_store_free(store));
  EXPECT(table.destroyed == 1);
}

/* ---- An allocator and a logger of the program's own. ---- */

typedef struct counts {
  pthread_mutex_t mutex;
  int allocated, released, logged;
} counts;

static void add(counts* c, int* to) {
  pthread_mutex_lock(&c->mutex);
  ++*to;
  pthread_mutex_unlock(&c->mutex);
}
static void* own_allocate(void* context, size_t bytes, void* stream) {
  void* data = NULL;
  (void)stream;
  add(context, &((counts*)context)->allocated);
  return posix_memalign(&data, 64, bytes == 0 ? 64 : bytes) == 0 ? data : NULL;
}
static void own_release(void* context, void* data, size_t bytes, void* stream) {
  (void)bytes;
  (void)stream;
  add(context, &((counts*)context)->released);
  free(data);
}
static void own_log(void* context, int32_t level, const char* message) {
  EXPECT(level >= TUTTI_LOG_ERROR && level <= TUTTI_LOG_DEBUG && *message != '\0');
  add(context, &((counts*)context)->logged);
}

/* ---- A rank. ---- */

static void run(const world* w) {
  test_verbs(w);
  test_rows(w);
  test_works(w);
  test_groups(w);
  test_structs(w);
  test_reducer(w);
  test_metrics(w);
  test_refusals(w);
  test_errors(w);
}

static void run_rank(world* w, int own_store) {
  counts c = {PTHREAD_MUTEX_INITIALIZER, 0, 0, 0};
  tutti_memory memory;
  tutti_group_options options;
  tutti_result* result = NULL;
  EXPECT(strcmp(tutti_last_error(), "") == 0); /* Of this thread. */
  TUTTI_INIT(memory);
  memory.context = &c;
  memory.allocate = own_allocate;
  memory.release = own_release;
  TUTTI_INIT(options);
  options.backend = w->backend;
  options.memory = &memory;
  options.log = own_log;
  options.log_context = &c;
  options.timeout_ns = 100000000000;
  if (own_store) {
    options.store = w->store = make_own_store();
    options.rank = w->rank;
    options.ranks = w->size;
    OK(tutti_group_create(&options, &w->group));
    OK(tutti_store_free(w->store)); /* The group keeps it. */
    w->store = make_own_store();
  } else {
    OK(tutti_init(&options, &w->group));
    OK(tutti_group_rank(w->group, &w->rank));
    OK(tutti_group_size(w->group, &w->size));
  }
  run(w);
  EXPECT(c.allocated > 0 && c.logged > 0);
  OK(tutti_all_gather_bytes(w->group, "", 0, NULL, &result));
  tutti_array x = tutti_vector("ab", TUTTI_U8, 2);
  tutti_result* rows = NULL;
  OK(tutti_all_gather_rows(w->group, &x, 1, NULL, NULL, &rows, NULL));
  OK(tutti_group_free(w->group));
  OK(tutti_result_free(rows)); /* Arrays may outlive the group. */
  OK(tutti_result_free(result));
  EXPECT(c.allocated == c.released);
  OK(tutti_store_free(w->store));
}

static void* start(void* w) {
  run_rank(w, 1);
  return NULL;
}

int main(int argc, char** argv) {
  world worlds[MAX_RANKS];
  pthread_t threads[MAX_RANKS];
  const int size = argc == 3 ? atoi(argv[2]) : 0;
  EXPECT(argc == 2 || (argc == 3 && size >= 1 && size <= MAX_RANKS));
  memset(worlds, 0, sizeof(worlds));
  for (int r = 0; r < MAX_RANKS; ++r) {
    worlds[r].backend = argv[1];
    worlds[r].rank = r;
    worlds[r].size = size;
  }
  if (size == 0) {
    run_rank(&worlds[0], 0);
    return 0;
  }
  test_stores();
  for (int r = 0; r < size; ++r) EXPECT(pthread_create(&threads[r], NULL, start, &worlds[r]) == 0);
  for (int r = 0; r < size; ++r) pthread_join(threads[r], NULL);
  EXPECT(table.destroyed == 1 + 2 * size);
  for (size_t i = 0; i < table.count; ++i) free(table.entries[i].value);
  printf("%d ranks over %s\n", size, argv[1]);
  return 0;
}
