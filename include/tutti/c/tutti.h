/* tutti in C: C99 and C++98. docs/c.md explains the rules; the C++ header named at each part has
   the shapes, wire cost and errors in full.

   Status. Every function returns TUTTI_OK or the code of an error, whose text is tutti_last_error()
   of the same thread. No exception leaves a function, and none may leave a function of the caller.
   Structs. Set a struct with TUTTI_INIT: it zeroes it and sets `size`. 0 is the default of every
   option. A struct of an older header is read as if the fields that it lacks were 0; a field that
   this library does not know must be 0.
   Handles. A null handle is TUTTI_INVALID_ARGUMENT; a handle that was freed must not be used.
   Freeing null does nothing. Out-parameters are null after an error.
   Works. A verb with `work` blocks if it is null. Otherwise it returns at once and sets *work, and
   the arrays must live until the Work has ended. A result of such a call is empty until
   tutti_work_wait(). Structs, lists and texts are borrowed until the function returns.
   Threads. As in C++: docs/c.md. */
#ifndef TUTTI_C_TUTTI_H
#define TUTTI_C_TUTTI_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The version of this header. It grows with each addition; nothing is removed or changed. */
#define TUTTI_ABI_VERSION 1
/* The version of the library: if it is lower than the header's, functions may be missing. */
int32_t tutti_abi_version(void);

#define TUTTI_INIT(x) (memset(&(x), 0, sizeof(x)), (x).size = sizeof(x))

/* tutti::Errc; tutti/error.hpp. */
typedef int32_t tutti_status;
enum {
  TUTTI_OK = 0,
  TUTTI_INVALID_ARGUMENT = 1,
  TUTTI_COUNT_OVERFLOW = 2,
  TUTTI_MISMATCH = 3,
  TUTTI_UNSUPPORTED = 4,
  TUTTI_NOT_INITIALIZED = 5,
  TUTTI_TIMEOUT = 6,
  TUTTI_PEER_LOST = 7,
  TUTTI_ABORTED = 8,
  TUTTI_RESOURCE_EXHAUSTED = 9,
  TUTTI_FORKED = 10,
  TUTTI_BACKEND = 11
};

/* The text of this thread's last error, until its next error; "" before the first one. */
const char* tutti_last_error(void);
/* Its parts (tutti::Error::Where). -1 and "": unknown. Pointers are valid as long as the text. */
typedef struct tutti_error {
  size_t size;
  tutti_status code;
  int32_t rank; /* The rank that caused it. */
  int64_t seq;  /* The call's number in its group. */
  const char *group, *operation, *message;
  const int32_t* missing; /* The ranks that had not entered the call. */
  int32_t missing_count;
  int32_t earlier; /* 1: the group broke before. */
} tutti_error;
tutti_status tutti_last_error_parts(tutti_error* parts);
const char* tutti_status_name(tutti_status status); /* "ok", "timeout", ... */

/* tutti::DType; tutti/dtype.hpp. */
enum {
  TUTTI_U8 = 0,
  TUTTI_I8 = 1,
  TUTTI_I16 = 2,
  TUTTI_U16 = 3,
  TUTTI_I32 = 4,
  TUTTI_U32 = 5,
  TUTTI_I64 = 6,
  TUTTI_U64 = 7,
  TUTTI_BOOLEAN = 8,
  TUTTI_F16 = 9,
  TUTTI_BF16 = 10,
  TUTTI_F32 = 11,
  TUTTI_F64 = 12,
  TUTTI_F8E4M3 = 13,
  TUTTI_F8E5M2 = 14,
  TUTTI_COMPLEX64 = 15,
  TUTTI_COMPLEX128 = 16
};

/* tutti::ReduceOp; tutti/reduce_op.hpp. Scale and function are in tutti_call_options. */
enum {
  TUTTI_SUM = 0,
  TUTTI_AVG = 1,
  TUTTI_PROD = 2,
  TUTTI_MIN = 3,
  TUTTI_MAX = 4,
  TUTTI_BAND = 5,
  TUTTI_BOR = 6,
  TUTTI_BXOR = 7,
  TUTTI_PREMUL_SUM = 8,
  TUTTI_CUSTOM = 9
};
/* inout[i] = in[i] op inout[i]. In an async call it runs on another thread. */
typedef void (*tutti_reduce_function)(const void* in, void* inout, int64_t count, uint8_t dtype,
                                      void* context);

/* tutti::Operation, for tutti_supports(). */
enum {
  TUTTI_OP_ALL_REDUCE = 0,
  TUTTI_OP_BROADCAST = 1,
  TUTTI_OP_REDUCE = 2,
  TUTTI_OP_ALL_GATHER = 3,
  TUTTI_OP_REDUCE_SCATTER = 5,
  TUTTI_OP_ALL_TO_ALL = 6,
  TUTTI_OP_GATHER = 7,
  TUTTI_OP_SCATTER = 8,
  TUTTI_OP_SCAN = 9,
  TUTTI_OP_EXCLUSIVE_SCAN = 10,
  TUTTI_OP_BARRIER = 11,
  TUTTI_OP_SEND = 12,
  TUTTI_OP_RECV = 13,
  TUTTI_OP_RECV_ANY = 14
};
#define TUTTI_ANY_PEER INT32_MIN

/* tutti::DeviceType. 0 counts as TUTTI_CPU. */
enum { TUTTI_CPU = 1, TUTTI_CUDA = 2, TUTTI_EXTENSION = 12 };
/* tutti::LogLevel. */
enum { TUTTI_LOG_ERROR = 1, TUTTI_LOG_WARNING = 2, TUTTI_LOG_INFO = 3, TUTTI_LOG_DEBUG = 4 };

/* A borrowed, contiguous, row-major array (tutti::TensorView); a null pointer is an empty one. The
   library does not write to arrays that a function takes as const. A list of arrays is an array of
   structs of equal `size`. */
#define TUTTI_MAX_DIMS 8
typedef struct tutti_array {
  size_t size;
  void* data;
  int32_t dtype;
  int32_t ndim;
  int32_t device_type;
  int32_t device_index;
  int64_t dims[TUTTI_MAX_DIMS];
} tutti_array;
/* An array [n] on the host. */
static inline tutti_array tutti_vector(const void* data, int32_t dtype, int64_t n) {
  tutti_array array;
  TUTTI_INIT(array);
  array.data = (void*)data;
  array.dtype = dtype;
  array.ndim = 1;
  array.dims[0] = n;
  return array;
}

typedef struct tutti_group tutti_group;
typedef struct tutti_work tutti_work;
typedef struct tutti_result tutti_result;
typedef struct tutti_store tutti_store;
typedef struct tutti_bytes tutti_bytes;
typedef struct tutti_coalesce tutti_coalesce;
typedef struct tutti_reducer tutti_reducer;
typedef struct tutti_loss tutti_loss;
typedef struct tutti_registration tutti_registration;
typedef struct tutti_store_server tutti_store_server;

/* An allocator (tutti::Memory; tutti/memory.hpp). Functions are called from any thread. The context
   outlives the group and all arrays. `copy` may be null for host memory. */
typedef struct tutti_memory {
  size_t size;
  void* context;
  int32_t device_type;
  int32_t device_index;
  void* (*allocate)(void* context, size_t bytes, void* stream); /* Null: out of memory. */
  void (*release)(void* context, void* data, size_t bytes, void* stream);
  void (*copy)(void* context, void* to, const void* from, size_t bytes, void* stream);
} tutti_memory;

/* tutti::CallOptions; a null pointer has all defaults. */
typedef struct tutti_call_options {
  size_t size;
  const char* name;             /* Compared between ranks, and shown in errors. */
  int64_t timeout_ns;           /* 0: the group's. */
  int64_t deadline_ns;          /* A moment of CLOCK_MONOTONIC; 0: none. */
  void* stream;                 /* On a device. */
  const tutti_memory* memory;   /* Of arrays that the call returns. */
  double scale;                 /* Of TUTTI_PREMUL_SUM. */
  tutti_reduce_function reduce; /* Of TUTTI_CUSTOM, as the next two fields. */
  void* reduce_context;
  int32_t commutative;
  int32_t order_fixed;
  int32_t integer_avg;
  int32_t reserved;
} tutti_call_options;

/* ---- Results: arrays of the library. ---- */

tutti_status tutti_result_count(const tutti_result* result, size_t* arrays);
/* The array lives until the result is freed. */
tutti_status tutti_result_array(const tutti_result* result, size_t index, tutti_array* array);
/* The rows of each rank, or what else the function says; null and 0 without. */
tutti_status tutti_result_rows(const tutti_result* result, const int64_t** rows, size_t* count);
tutti_status tutti_result_free(tutti_result* result);

/* ---- Works: tutti/work.hpp. ---- */

tutti_status tutti_work_wait(tutti_work* work);
tutti_status tutti_work_wait_for(tutti_work* work, int64_t ns, int32_t* done);
tutti_status tutti_work_done(const tutti_work* work, int32_t* done);
tutti_status tutti_work_block_stream(tutti_work* work, void* stream);
/* Calls f once after the end, on another thread. `text` is null after success. */
tutti_status tutti_work_on_done(tutti_work* work,
                                void (*f)(void* context, tutti_status status, const char* text),
                                void* context);
/* Runs f after the call; the Work now ends after f. A status other than TUTTI_OK is its error. */
tutti_status tutti_work_then(tutti_work* work, tutti_status (*f)(void* context), void* context);
/* One Work for all, which are freed. */
tutti_status tutti_work_all(tutti_work** works, size_t count, tutti_work** all);
/* Frees without waiting. The arrays must still live until the call has ended: tutti_work_on_done.
 */
tutti_status tutti_work_detach(tutti_work* work);
/* Waits for the end. An error that was not collected breaks the group. */
tutti_status tutti_work_free(tutti_work* work);

/* ---- Stores: tutti/store/store.hpp. ---- */

/* A store of the caller's own. Keys are texts. `get` waits for timeout_ns: 0 not at all, negative
   without a limit, and returns TUTTI_TIMEOUT if there is no such key. get and compare_set write the
   value with tutti_bytes_set(); compare_set sets `desired` if the value equals `expected`, or if
   that is empty and the key is missing, and writes the value afterwards. Called from any thread. */
typedef struct tutti_store_functions {
  size_t size;
  void* context;
  tutti_status (*set)(void* context, const char* key, const void* value, size_t bytes);
  tutti_status (*get)(void* context, const char* key, int64_t timeout_ns, tutti_bytes* value);
  tutti_status (*add)(void* context, const char* key, int64_t delta, int64_t* sum);
  tutti_status (*compare_set)(void* context, const char* key, const void* expected,
                              size_t expected_bytes, const void* desired, size_t desired_bytes,
                              tutti_bytes* value);
  tutti_status (*erase)(void* context, const char* key, int32_t* existed);
  void (*destroy)(void* context); /* After the last use; may be null. */
  const char* local_address;      /* As Store::local_address(); null: unknown. */
  int32_t in_process;             /* 1: all its users are threads of this process. */
  int32_t reserved;
} tutti_store_functions;
tutti_status tutti_bytes_set(tutti_bytes* to, const void* data, size_t bytes);

tutti_status tutti_store_create(const tutti_store_functions* functions, tutti_store** store);
/* "tcp://host:port", "file:///directory", "memory://name". */
tutti_status tutti_store_open(const char* address, int64_t timeout_ns, tutti_store** store);
tutti_status tutti_store_prefix(tutti_store* base, const char* prefix, tutti_store** store);
/* A server for "tcp://". host null: loopback; port 0: any free one, which is then in *port. */
tutti_status tutti_store_serve(const char* host, int32_t* port, tutti_store_server** server);
tutti_status tutti_store_server_free(tutti_store_server* server);
tutti_status tutti_store_set(tutti_store* store, const char* key, const void* value, size_t bytes);
/* Array 0 of the result is the value. timeout_ns as in tutti_store_functions. */
tutti_status tutti_store_get(tutti_store* store, const char* key, int64_t timeout_ns,
                             tutti_result** value);
tutti_status tutti_store_wait(tutti_store* store, const char* key, int64_t timeout_ns);
tutti_status tutti_store_add(tutti_store* store, const char* key, int64_t delta, int64_t* sum);
tutti_status tutti_store_compare_set(tutti_store* store, const char* key, const void* expected,
                                     size_t expected_bytes, const void* desired,
                                     size_t desired_bytes, tutti_result** value);
tutti_status tutti_store_erase(tutti_store* store, const char* key, int32_t* existed);
/* Groups keep the store alive. */
tutti_status tutti_store_free(tutti_store* store);

/* ---- Groups: tutti/process_group.hpp, tutti/group_options.hpp, tutti/init.hpp. ---- */

typedef struct tutti_group_options {
  size_t size;
  const char* backend; /* Null: "auto". */
  const char* name;    /* Null: "world". */
  tutti_store* store;
  int32_t rank;
  int32_t ranks; /* 0: 1; for tutti_init() rank and ranks of the launcher. */
  int32_t device_type;
  int32_t device_index;
  int64_t timeout_ns;    /* Of calls; 0: 5 minutes. */
  int64_t dead_after_ns; /* 0: TUTTI_DEAD_AFTER or 10 s; negative: never. */
  int32_t checked;       /* 1: on; negative: off; 0: TUTTI_CHECK. */
  int32_t reserved;
  const tutti_memory* memory; /* Of results; null: the backend's. Copied. */
  /* Null: warnings to stderr. Called from any thread; must not call the library. */
  void (*log)(void* context, int32_t level, const char* message);
  void* log_context;
  void* communicator; /* An ncclComm_t to use; `aborting` is called before it is aborted. */
  void (*aborting)(void* context);
  void* aborting_context;
} tutti_group_options;

/* A group of the launcher's ranks. There is no hidden default group: free it at the end. */
tutti_status tutti_init(const tutti_group_options* options, tutti_group** group);
tutti_status tutti_group_create(const tutti_group_options* options, tutti_group** group);
/* Several ranks of this process, each on a thread; `options` are structs of equal size. */
tutti_status tutti_group_create_all(const tutti_group_options* options, size_t count,
                                    tutti_group** groups);
/* Writes a new member's handle for tutti_reconfigure(). */
#define TUTTI_MEMBER_BYTES 256
tutti_status tutti_new_member(char member[TUTTI_MEMBER_BYTES]);
tutti_status tutti_reconfigure(const tutti_group_options* options, const char* own,
                               const char* const* members, size_t count, tutti_group** group);
tutti_status tutti_group_share(const tutti_group* group, tutti_group** same);
/* Ends the group with its last handle: peers that wait get TUTTI_PEER_LOST. */
tutti_status tutti_group_free(tutti_group* group);

tutti_status tutti_rank(const tutti_group* group, int32_t* rank);
tutti_status tutti_size(const tutti_group* group, int32_t* size);
tutti_status tutti_local_rank(const tutti_group* group, int32_t* rank);
tutti_status tutti_local_size(const tutti_group* group, int32_t* size);
tutti_status tutti_sequence_number(const tutti_group* group, uint64_t* number);
tutti_status tutti_timeout(const tutti_group* group, int64_t* ns);
tutti_status tutti_set_timeout(tutti_group* group, int64_t ns);
/* Texts live until the handle is freed, tutti_transport() until its next call. */
tutti_status tutti_name(const tutti_group* group, const char** name);
tutti_status tutti_backend(const tutti_group* group, const char** backend);
tutti_status tutti_backend_reason(const tutti_group* group, const char** reason);
tutti_status tutti_transport(tutti_group* group, const char** transport);
tutti_status tutti_supports(const tutti_group* group, int32_t operation, int32_t dtype, int32_t op,
                            int32_t* supported);
/* *sub is null on ranks that are in no group. */
tutti_status tutti_split(tutti_group* group, int32_t color, int32_t key,
                         const tutti_call_options* options, tutti_group** sub);
tutti_status tutti_subset(tutti_group* group, const int32_t* ranks, size_t count,
                          const tutti_call_options* options, tutti_group** sub);
/* patience_ns 0: 2 s. */
tutti_status tutti_shrink(tutti_group* group, const int32_t* lost, size_t count,
                          int64_t patience_ns, tutti_group** rest);
tutti_status tutti_abort(tutti_group* group, const char* why);
/* Array 0 is a text: the last calls, a line each. */
tutti_status tutti_trace(const tutti_group* group, tutti_result** trace);
/* Array 0 has the dtype and shape of `like`, in the group's memory; `registrable`: in that of
   tutti_register_memory(). */
tutti_status tutti_allocate(tutti_group* group, const tutti_array* like, int32_t registrable,
                            tutti_result** result);
tutti_status tutti_register_memory(tutti_group* group, const tutti_array* block,
                                   const tutti_call_options* options,
                                   tutti_registration** registration);
tutti_status tutti_registration_free(tutti_registration* registration);

/* ---- Verbs: tutti/process_group.hpp. `rows` has an entry per rank; null: equal rows. ---- */

tutti_status tutti_all_reduce(tutti_group* group, const tutti_array* in, const tutti_array* out,
                              int32_t op, const tutti_call_options* options, tutti_work** work);
tutti_status tutti_broadcast(tutti_group* group, const tutti_array* data, int32_t root,
                             const tutti_call_options* options, tutti_work** work);
tutti_status tutti_reduce(tutti_group* group, const tutti_array* in, const tutti_array* out,
                          int32_t root, int32_t op, const tutti_call_options* options,
                          tutti_work** work);
tutti_status tutti_all_gather(tutti_group* group, const tutti_array* in, const tutti_array* out,
                              const int64_t* rows, const tutti_call_options* options,
                              tutti_work** work);
/* `outs` has an array per rank. */
tutti_status tutti_all_gather_list(tutti_group* group, const tutti_array* in,
                                   const tutti_array* outs, const tutti_call_options* options,
                                   tutti_work** work);
tutti_status tutti_reduce_scatter(tutti_group* group, const tutti_array* in, const tutti_array* out,
                                  const int64_t* rows, int32_t op,
                                  const tutti_call_options* options, tutti_work** work);
tutti_status tutti_all_to_all(tutti_group* group, const tutti_array* in, const tutti_array* out,
                              const int64_t* send_rows, const int64_t* recv_rows,
                              const tutti_call_options* options, tutti_work** work);
tutti_status tutti_all_to_all_list(tutti_group* group, const tutti_array* ins,
                                   const tutti_array* outs, const tutti_call_options* options,
                                   tutti_work** work);
tutti_status tutti_gather(tutti_group* group, const tutti_array* in, const tutti_array* out,
                          int32_t root, const int64_t* rows, const tutti_call_options* options,
                          tutti_work** work);
tutti_status tutti_scatter(tutti_group* group, const tutti_array* in, const tutti_array* out,
                           int32_t root, const int64_t* rows, const tutti_call_options* options,
                           tutti_work** work);
tutti_status tutti_scan(tutti_group* group, const tutti_array* in, const tutti_array* out,
                        int32_t op, const tutti_call_options* options, tutti_work** work);
tutti_status tutti_exclusive_scan(tutti_group* group, const tutti_array* in, const tutti_array* out,
                                  int32_t op, const tutti_call_options* options, tutti_work** work);
tutti_status tutti_barrier(tutti_group* group, const tutti_call_options* options,
                           tutti_work** work);
tutti_status tutti_monitored_barrier(tutti_group* group, const tutti_call_options* options);
tutti_status tutti_send(tutti_group* group, const tutti_array* data, int32_t peer, int32_t tag,
                        const tutti_call_options* options, tutti_work** work);
/* *source: the sender, if not null; an async call writes it before the Work ends. */
tutti_status tutti_recv(tutti_group* group, const tutti_array* data, int32_t peer, int32_t tag,
                        int32_t* source, const tutti_call_options* options, tutti_work** work);
tutti_status tutti_sendrecv(tutti_group* group, const tutti_array* in, int32_t to,
                            const tutti_array* out, int32_t from, int32_t tag,
                            const tutti_call_options* options, tutti_work** work);

/* ---- Coalesced calls: tutti/coalesce.hpp. ---- */

tutti_status tutti_coalesce_begin(tutti_group* const* groups, size_t count, tutti_coalesce** calls);
/* Takes the Work of a collected call. */
tutti_status tutti_coalesce_add(tutti_coalesce* calls, tutti_work* collected);
/* Sends the calls as one. *work must be waited for or detached as any other; null blocks. */
tutti_status tutti_coalesce_launch(tutti_coalesce* calls, tutti_work** work);
tutti_status tutti_coalesce_free(tutti_coalesce* calls);

/* ---- Gathers of unknown sizes: tutti/gather.hpp. Results are in rank order; `rows` null:
   exchanged by the call. ---- */

tutti_status tutti_exchange_rows(tutti_group* group, int64_t rows,
                                 const tutti_call_options* options, int64_t* rows_of_ranks);
/* One result array for each of `locals`. Async: one array only. */
tutti_status tutti_all_gather_rows(tutti_group* group, const tutti_array* locals, size_t count,
                                   const int64_t* rows, const tutti_call_options* options,
                                   tutti_result** result, tutti_work** work);
tutti_status tutti_all_gather_padded(tutti_group* group, const tutti_array* local, double fill,
                                     const int64_t* rows, const tutti_call_options* options,
                                     tutti_result** result, tutti_work** work);
tutti_status tutti_gather_rows(tutti_group* group, const tutti_array* local, int32_t root,
                               const int64_t* rows, const tutti_call_options* options,
                               tutti_result** result, tutti_work** work);
/* `whole` and `rows` are read on root only. */
tutti_status tutti_scatter_rows(tutti_group* group, const tutti_array* whole, int32_t root,
                                const int64_t* rows, const tutti_call_options* options,
                                tutti_result** result);
tutti_status tutti_reduce_scatter_rows(tutti_group* group, const tutti_array* whole,
                                       const int64_t* rows, int32_t op,
                                       const tutti_call_options* options, tutti_result** result,
                                       tutti_work** work);
tutti_status tutti_all_to_all_rows(tutti_group* group, const tutti_array* in,
                                   const int64_t* send_rows, const tutti_call_options* options,
                                   tutti_result** result, tutti_work** work);
/* The lists of all ranks, one behind the other; result rows: the length of each rank's list. */
tutti_status tutti_gather_all_tensors(tutti_group* group, const tutti_array* locals, size_t count,
                                      const tutti_call_options* options, tutti_result** result);
/* An array of u8 from each rank. */
tutti_status tutti_all_gather_bytes(tutti_group* group, const void* local, size_t bytes,
                                    const tutti_call_options* options, tutti_result** result);
/* Array 0 has root's bytes, which are read on root only. */
tutti_status tutti_broadcast_bytes(tutti_group* group, const void* data, size_t bytes, int32_t root,
                                   const tutti_call_options* options, tutti_result** result);

/* The sum over ranks of `sum`, divided by that of `count`: tutti/sync.hpp. */
tutti_status tutti_global_mean(tutti_group* group, double sum, double count,
                               const tutti_call_options* options, double* mean);

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
 */
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

/* ---- Losses: tutti/losses/. ---- */

/* tutti::losses::RankingBatch. Arrays may be null, except for logits and targets. The focal losses
   take logits, targets and weight. */
typedef struct tutti_batch {
  size_t size;
  const tutti_array *logits, *targets, *iid, *weight, *live;
  int32_t evaluation; /* 1: training = false. */
  int32_t reserved;
} tutti_batch;

/* `kind`: "smooth_ap", "recall_at_quantile", "p_auc_at_budget", "cross_entropy", "sigmoid_focal" or
   "softmax_focal". `options`: a text such as "classes=3 temperature=0.05 reduction=none", with the
   names of the C++ struct and of its enumerators; a list is "1,0.5,2". Null: defaults. */
tutti_status tutti_loss_create(const char* kind, const char* options, tutti_loss** loss);
/* WarmUp over a cross_entropy and a ranking loss, which are freed also after an error. */
tutti_status tutti_loss_create_warm_up(tutti_loss* first, tutti_loss* main, const char* options,
                                       tutti_loss** loss);
/* Collective, or of this process alone if `group` is null. `result`, which may be null: array 0 is
   the gradient, 1 the loss of each class or term (f64), 2 the ClassStatus of each class (u8), and
   of "p_auc_at_budget" 3 its diagnostics [C, 5] (f64): t_alpha, t_beta, tau_eff, band_negatives,
   variance. */
tutti_status tutti_loss_evaluate(tutti_loss* loss, tutti_group* group, const tutti_batch* batch,
                                 const tutti_call_options* options, double* value,
                                 tutti_result** result);
/* The rest is for ranking losses and WarmUp; other losses have no state (TUTTI_UNSUPPORTED). */
tutti_status tutti_loss_save(const tutti_loss* loss, tutti_group* group,
                             const tutti_call_options* options, tutti_result** state);
tutti_status tutti_loss_load(tutti_loss* loss, tutti_group* group, const void* state, size_t bytes);
tutti_status tutti_loss_set_group(tutti_loss* loss, tutti_group* group,
                                  const tutti_call_options* options);
tutti_status tutti_loss_temperature(const tutti_loss* loss, double* temperature);
tutti_status tutti_loss_set_temperature(tutti_loss* loss, double temperature);
tutti_status tutti_loss_enqueue(tutti_loss* loss, tutti_group* group, const tutti_batch* rows,
                                const tutti_call_options* options);
tutti_status tutti_loss_queued(const tutti_loss* loss, int64_t* rows);
/* Arrays: logits [n, C] f64, targets i64, iid u8, weights f64. */
tutti_status tutti_loss_queued_rows(const tutti_loss* loss, tutti_group* group,
                                    const tutti_call_options* options, tutti_result** rows);
tutti_status tutti_loss_reset_queue(tutti_loss* loss);
tutti_status tutti_loss_start_epoch(tutti_loss* loss, int64_t epoch); /* WarmUp alone. */
tutti_status tutti_loss_start_step(tutti_loss* loss, int64_t step);
tutti_status tutti_loss_main_weight(const tutti_loss* loss, double* weight);
tutti_status tutti_loss_free(tutti_loss* loss);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
