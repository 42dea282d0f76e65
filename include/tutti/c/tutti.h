/** @file
   tutti in C: C99 and C++98. docs/c.md explains the rules; the C++ header named at each part has
   the shapes, wire cost and errors in full.

   Status. Every function returns TUTTI_OK or the code of an error, whose text is tutti_last_error()
   of the same thread. No exception leaves a function, and none may leave a function of the caller.
   Structs. Set a struct with TUTTI_INIT: it zeroes it and sets `size`. 0 is the default of every
   option. A struct of an older header is read as if the fields that it lacks were 0; a field that
   this library does not know must be 0.
   Handles. A null handle is TUTTI_INVALID_ARGUMENT; a handle that was freed must not be used.
   Freeing null does nothing. A handle that a function returns is null after an error.
   Works. A verb with `work` blocks if it is null. Otherwise it returns at once and sets *work, and
   the arrays must live until the Work has ended. A result of such a call is empty until
   tutti_work_wait(). Structs, lists and texts are borrowed until the function returns.
   Threads. As in C++: docs/c.md. */
#ifndef TUTTI_C_TUTTI_H
#define TUTTI_C_TUTTI_H

#include <tutti/c/training.h>
#include <tutti/c/values.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- Results: arrays of the library. ---- */

/** Writes the number of arrays. */
tutti_status tutti_result_count(const tutti_result* result, size_t* arrays);
/** Describes an array, which lives until the result is freed. */
tutti_status tutti_result_array(const tutti_result* result, size_t index, tutti_array* array);
/** The rows of each rank, or what else the function says; null and 0 without. */
tutti_status tutti_result_rows(const tutti_result* result, const int64_t** rows, size_t* count);
/** Frees the arrays of the result, too. */
tutti_status tutti_result_free(tutti_result* result);

/* ---- Works: tutti/work.hpp. ---- */

/** Waits for the end. Returns the error of the call once. A second wait returns TUTTI_OK at once,
   and the result of a gather that failed stays empty. */
tutti_status tutti_work_wait(tutti_work* work);
/** Waits for `ns` at most; negative: without a limit. Sets *done to 1 if the call has ended. */
tutti_status tutti_work_wait_for(tutti_work* work, int64_t ns, int32_t* done);
/** Sets *done to 1 if the call has ended, otherwise to 0. Does not wait. */
tutti_status tutti_work_done(const tutti_work* work, int32_t* done);
/** Work queued on `stream` afterwards may use the buffers; waits if they are on the host. */
tutti_status tutti_work_block_stream(tutti_work* work, void* stream);
/** Calls f once after the end, on another thread. `text` is null after success. */
tutti_status tutti_work_on_done(tutti_work* work,
                                void (*f)(void* context, tutti_status status, const char* text),
                                void* context);
/** Runs f after the call; the Work now ends after f. A status other than TUTTI_OK is its error. */
tutti_status tutti_work_then(tutti_work* work, tutti_status (*f)(void* context), void* context);
/** One Work for all, which are freed. A Work must not be in the list twice. */
tutti_status tutti_work_all(tutti_work** works, size_t count, tutti_work** all);
/** Frees without waiting. The arrays must live until the call has ended: tutti_work_on_done(). */
tutti_status tutti_work_detach(tutti_work* work);
/** Waits for the end. An error that was not collected breaks the group. */
tutti_status tutti_work_free(tutti_work* work);

/* ---- Stores: tutti/store/store.hpp. ---- */

/** A store of the caller's own. Keys are texts. `get` waits for timeout_ns: 0 not at all, negative
   without a limit, and returns TUTTI_TIMEOUT if there is no such key. get and compare_set write the
   value with tutti_bytes_set(); compare_set sets `desired` if the value equals `expected`, or if
   that is empty and the key is missing, and writes the value afterwards. Called from any thread. */
typedef struct tutti_store_functions {
  size_t size;   /**< sizeof the struct: TUTTI_INIT sets it. */
  void* context; /**< The first argument of the functions. */
  /** Replaces the value of a key. */
  tutti_status (*set)(void* context, const char* key, const void* value, size_t bytes);
  /** Waits for a key, as said above. */
  tutti_status (*get)(void* context, const char* key, int64_t timeout_ns, tutti_bytes* value);
  /** Adds atomically to the value, a decimal text; a missing key counts as 0. *sum: the new one. */
  tutti_status (*add)(void* context, const char* key, int64_t delta, int64_t* sum);
  /** Replaces the value if it is the expected one, as said above. */
  tutti_status (*compare_set)(void* context, const char* key, const void* expected,
                              size_t expected_bytes, const void* desired, size_t desired_bytes,
                              tutti_bytes* value);
  /** Removes a key. Sets *existed to 1 if there was one. */
  tutti_status (*erase)(void* context, const char* key, int32_t* existed);
  void (*destroy)(void* context); /**< After the last use; may be null. */
  const char* local_address;      /**< As Store::local_address(); null: unknown. */
  int32_t in_process;             /**< 1: all its users are threads of this process. */
  int32_t reserved;               /**< Must be 0. */
} tutti_store_functions;
/** Copies a value to `to`, for get and compare_set of tutti_store_functions. */
tutti_status tutti_bytes_set(tutti_bytes* to, const void* data, size_t bytes);

/** A store over functions of the caller's, which are copied. */
tutti_status tutti_store_create(const tutti_store_functions* functions, tutti_store** store);
/** Opens "tcp://host:port", "file:///directory", "memory://name". timeout_ns 0: 60 s. */
tutti_status tutti_store_open(const char* address, int64_t timeout_ns, tutti_store** store);
/** A store over `base`, which it keeps, that puts `prefix` before every key. */
tutti_status tutti_store_prefix(tutti_store* base, const char* prefix, tutti_store** store);
/** A server for "tcp://". host null: loopback; port 0: any free one, which is then in *port. */
tutti_status tutti_store_serve(const char* host, int32_t* port, tutti_store_server** server);
/** Ends the server and its table: calls of its clients return TUTTI_PEER_LOST. */
tutti_status tutti_store_server_free(tutti_store_server* server);
/** Replaces the value of a key. */
tutti_status tutti_store_set(tutti_store* store, const char* key, const void* value, size_t bytes);
/** Array 0 of the result is the value. timeout_ns as in tutti_store_functions. */
tutti_status tutti_store_get(tutti_store* store, const char* key, int64_t timeout_ns,
                             tutti_result** value);
/** Waits for a key. timeout_ns as in tutti_store_functions. */
tutti_status tutti_store_wait(tutti_store* store, const char* key, int64_t timeout_ns);
/** Adds atomically to a decimal number; a missing key counts as 0. *sum: the new value. */
tutti_status tutti_store_add(tutti_store* store, const char* key, int64_t delta, int64_t* sum);
/** Sets `desired` if the value equals `expected`, or if that is empty and the key is missing. Array
   0 of the result is the value afterwards, empty if the key is missing. */
tutti_status tutti_store_compare_set(tutti_store* store, const char* key, const void* expected,
                                     size_t expected_bytes, const void* desired,
                                     size_t desired_bytes, tutti_result** value);
/** Removes a key. Sets *existed, if not null, to 1 if there was one, otherwise to 0. */
tutti_status tutti_store_erase(tutti_store* store, const char* key, int32_t* existed);
/** Groups keep the store alive. */
tutti_status tutti_store_free(tutti_store* store);

/* ---- Groups: tutti/process_group.hpp, tutti/group_options.hpp, tutti/init.hpp. ---- */

/** Options of a group: tutti::GroupOptions. */
typedef struct tutti_group_options {
  size_t size;         /**< sizeof the struct: TUTTI_INIT sets it. */
  const char* backend; /**< Null: "auto". */
  const char* name;    /**< Null: "world". */
  tutti_store* store;  /**< Required for more than one rank. */
  int32_t rank;        /**< 0 to ranks - 1. */
  int32_t ranks; /**< 0: 1; for tutti_init() rank and ranks of the launcher. `rank` is then 0. */
  int32_t device_type;        /**< Of the arrays, as in tutti_array. */
  int32_t device_index;       /**< Of the arrays, as in tutti_array. */
  int64_t timeout_ns;         /**< Of calls; 0: 5 minutes. */
  int64_t dead_after_ns;      /**< 0: TUTTI_DEAD_AFTER or 10 s; negative: never. */
  int32_t checked;            /**< 1: on; negative: off; 0: TUTTI_CHECK. */
  int32_t reproducible;       /**< Of every call. 1: on; negative: off; 0: TUTTI_REPRODUCIBLE. */
  const tutti_memory* memory; /**< Of results; null: the backend's. Copied. */
  /** Null: stderr, at the level of TUTTI_LOG. Called from any thread; must not call the library. */
  void (*log)(void* context, int32_t level, const char* message);
  void* log_context;  /**< The first argument of `log`. */
  void* communicator; /**< An ncclComm_t to use; null: a new one. */
  /** Called once, from any thread, before the group aborts `communicator`; may be null. */
  void (*aborting)(void* context);
  void* aborting_context; /**< The argument of `aborting`. */
} tutti_group_options;

/** A group of the launcher's ranks. There is no hidden default group: free it at the end. */
tutti_status tutti_init(const tutti_group_options* options, tutti_group** group);
/** Makes a group. Blocks until all ranks have called it. */
tutti_status tutti_group_create(const tutti_group_options* options, tutti_group** group);
/** Several ranks of this process, each on a thread; `options` are structs of equal size. */
tutti_status tutti_group_create_all(const tutti_group_options* options, size_t count,
                                    tutti_group** groups);
/** Bytes of a member's handle, with its final 0. */
#define TUTTI_MEMBER_BYTES 256
/** Writes a new member's handle for tutti_group_reconfigure(). */
tutti_status tutti_group_new_member(char member[TUTTI_MEMBER_BYTES]);
/** Collective of `members`, all with the same list: a new group, in which the rank of a member is
   the index of its handle, `own`. `rank` and `ranks` of the options keep their defaults. */
tutti_status tutti_group_reconfigure(const tutti_group_options* options, const char* own,
                                     const char* const* members, size_t count, tutti_group** group);
/** Another handle of the same group. */
tutti_status tutti_group_share(const tutti_group* group, tutti_group** same);
/** Ends the group with its last handle: peers that wait get TUTTI_PEER_LOST. */
tutti_status tutti_group_free(tutti_group* group);

/** The rank of this process, 0 to size - 1. */
tutti_status tutti_group_rank(const tutti_group* group, int32_t* rank);
/** The number of ranks, W. */
tutti_status tutti_group_size(const tutti_group* group, int32_t* size);
/** The rank among the ranks of this host, or container. */
tutti_status tutti_group_local_rank(const tutti_group* group, int32_t* rank);
/** The number of ranks of this host, or container. */
tutti_status tutti_group_local_size(const tutti_group* group, int32_t* size);
/** The collectives that this rank has issued, coalesced ones counted as one. */
tutti_status tutti_group_sequence_number(const tutti_group* group, uint64_t* number);
/** The timeout of this rank's calls, in nanoseconds. */
tutti_status tutti_group_timeout(const tutti_group* group, int64_t* ns);
/** Sets the timeout of this rank's later calls, in nanoseconds; ranks may differ. */
tutti_status tutti_group_set_timeout(tutti_group* group, int64_t ns);
/** The name in errors. Texts of a group live until the handle is freed, tutti_group_transport()
   until its next call. */
tutti_status tutti_group_name(const tutti_group* group, const char** name);
/** The backend in use: "tcp". */
tutti_status tutti_group_backend(const tutti_group* group, const char** backend);
/** The reason why this backend was chosen, in words. */
tutti_status tutti_group_backend_reason(const tutti_group* group, const char** reason);
/** The transport in use: "tcp/eth0". */
tutti_status tutti_group_transport(tutti_group* group, const char** transport);
/** Sets *supported to 1 if the group can do it; to 0 also for an operation or a dtype that the
   library does not know. */
tutti_status tutti_group_supports(const tutti_group* group, int32_t operation, int32_t dtype,
                                  int32_t op, int32_t* supported);
/** Collective: ranks with equal `color` form a group, ordered by `key`, then by rank. A negative
   color gets none: *sub is then null. */
tutti_status tutti_group_split(tutti_group* group, int32_t color, int32_t key,
                               const tutti_call_options* options, tutti_group** sub);
/** tutti_group_split() by a list of members, the same on all ranks. *sub is null on other ranks. */
tutti_status tutti_group_subset(tutti_group* group, const int32_t* ranks, size_t count,
                                const tutti_call_options* options, tutti_group** sub);
/** Collective of the ranks that are left: a new group of those that call, also after `group` broke.
   patience_ns: how long ranks that are not known as lost are waited for; 0: 2 s. */
tutti_status tutti_group_shrink(tutti_group* group, const int32_t* lost, size_t count,
                                int64_t patience_ns, tutti_group** rest);
/** Ends every pending call with TUTTI_ABORTED, on peers too where the backend can. */
tutti_status tutti_group_abort(tutti_group* group, const char* why);
/** Array 0 is a text: the last calls, a line each. */
tutti_status tutti_group_trace(const tutti_group* group, tutti_result** trace);
/** Array 0 has the dtype and shape of `like`, in the group's memory; `registrable`: in that of
   tutti_register_memory(). */
tutti_status tutti_allocate(tutti_group* group, const tutti_array* like, int32_t registrable,
                            tutti_result** result);
/** Collective, with equal byte counts: registers a block with the transport. */
tutti_status tutti_register_memory(tutti_group* group, const tutti_array* block,
                                   const tutti_call_options* options,
                                   tutti_registration** registration);
/** Before the memory is freed, on all ranks between the same calls. Waits for pending calls. */
tutti_status tutti_registration_free(tutti_registration* registration);

/* ---- Verbs: tutti/process_group.hpp. `rows` has an entry per rank; null: equal rows. ---- */

/** out [...] = op over ranks of in [...]. `out` may be `in`. */
tutti_status tutti_all_reduce(tutti_group* group, const tutti_array* in, const tutti_array* out,
                              int32_t op, const tutti_call_options* options, tutti_work** work);
/** Copies root's data [...] to all ranks. */
tutti_status tutti_broadcast(tutti_group* group, const tutti_array* data, int32_t root,
                             const tutti_call_options* options, tutti_work** work);
/** out [...] on root = op over ranks of in [...]; other ranks need no `out`. */
tutti_status tutti_reduce(tutti_group* group, const tutti_array* in, const tutti_array* out,
                          int32_t root, int32_t op, const tutti_call_options* options,
                          tutti_work** work);
/** out [sum of rows, ...] = all ranks' in [rows of this rank, ...], in rank order. */
tutti_status tutti_all_gather(tutti_group* group, const tutti_array* in, const tutti_array* out,
                              const int64_t* rows, const tutti_call_options* options,
                              tutti_work** work);
/** outs[r] = rank r's array, of the dtype and count of `in`; `outs` has an array per rank. */
tutti_status tutti_all_gather_list(tutti_group* group, const tutti_array* in,
                                   const tutti_array* outs, const tutti_call_options* options,
                                   tutti_work** work);
/** out [rows of this rank, ...] = its rows of (op over ranks of in [sum of rows, ...]). */
tutti_status tutti_reduce_scatter(tutti_group* group, const tutti_array* in, const tutti_array* out,
                                  const int64_t* rows, int32_t op,
                                  const tutti_call_options* options, tutti_work** work);
/** Sends block j of in [sum of send_rows, ...] to rank j; out [sum of recv_rows, ...] is in rank
   order. */
tutti_status tutti_all_to_all(tutti_group* group, const tutti_array* in, const tutti_array* out,
                              const int64_t* send_rows, const int64_t* recv_rows,
                              const tutti_call_options* options, tutti_work** work);
/** ins[r] goes to rank r, outs[r] comes from it; counts may differ. An array per rank each. */
tutti_status tutti_all_to_all_list(tutti_group* group, const tutti_array* ins,
                                   const tutti_array* outs, const tutti_call_options* options,
                                   tutti_work** work);
/** tutti_all_gather() with `out` on root only. */
tutti_status tutti_gather(tutti_group* group, const tutti_array* in, const tutti_array* out,
                          int32_t root, const int64_t* rows, const tutti_call_options* options,
                          tutti_work** work);
/** out [rows of this rank, ...] = its rows of root's in [sum of rows, ...]; others need no `in`. */
tutti_status tutti_scatter(tutti_group* group, const tutti_array* in, const tutti_array* out,
                           int32_t root, const int64_t* rows, const tutti_call_options* options,
                           tutti_work** work);
/** out = op over ranks 0 to this one of in; not TUTTI_AVG. */
tutti_status tutti_scan(tutti_group* group, const tutti_array* in, const tutti_array* out,
                        int32_t op, const tutti_call_options* options, tutti_work** work);
/** tutti_scan() without this rank. Rank 0 gets the identity of op, or keeps out if TUTTI_CUSTOM. */
tutti_status tutti_exclusive_scan(tutti_group* group, const tutti_array* in, const tutti_array* out,
                                  int32_t op, const tutti_call_options* options, tutti_work** work);
/** Waits until all ranks have entered. */
tutti_status tutti_barrier(tutti_group* group, const tutti_call_options* options,
                           tutti_work** work);
/** A barrier through the store that ends at its deadline with TUTTI_TIMEOUT on all ranks, and names
   the missing ones. */
tutti_status tutti_monitored_barrier(tutti_group* group, const tutti_call_options* options);
/** May block until the peer receives. Matched in order by sender, receiver and tag. */
tutti_status tutti_send(tutti_group* group, const tutti_array* data, int32_t peer, int32_t tag,
                        const tutti_call_options* options, tutti_work** work);
/** Receives from `peer`, which may be TUTTI_ANY_PEER. *source: the sender, if not null; an async
   call writes it before the Work ends. */
tutti_status tutti_recv(tutti_group* group, const tutti_array* data, int32_t peer, int32_t tag,
                        int32_t* source, const tutti_call_options* options, tutti_work** work);
/** tutti_send(in, to) and tutti_recv(out, from) at once: a ring cannot deadlock. */
tutti_status tutti_sendrecv(tutti_group* group, const tutti_array* in, int32_t to,
                            const tutti_array* out, int32_t from, int32_t tag,
                            const tutti_call_options* options, tutti_work** work);

/* ---- Coalesced calls: tutti/coalesce.hpp. ---- */

/** Collects this thread's async calls on the groups until launch. Blocking verbs are refused. */
tutti_status tutti_coalesce_begin(tutti_group* const* groups, size_t count, tutti_coalesce** calls);
/** Takes the Work of a collected call. */
tutti_status tutti_coalesce_add(tutti_coalesce* calls, tutti_work* collected);
/** Sends the calls as one. *work must be waited for or detached as any other; null blocks. */
tutti_status tutti_coalesce_launch(tutti_coalesce* calls, tutti_work** work);
/** Without a launch it sends nothing, and breaks the groups that had calls. */
tutti_status tutti_coalesce_free(tutti_coalesce* calls);

/* ---- Gathers of unknown sizes: tutti/gather.hpp. Results are in rank order; `rows` null:
   exchanged by the call. ---- */

/** Writes the `rows` of each rank to rows_of_ranks [W]. */
tutti_status tutti_exchange_rows(tutti_group* group, int64_t rows,
                                 const tutti_call_options* options, int64_t* rows_of_ranks);
/** Array i of the result: all ranks' rows of locals[i] [n_r, ...]. Async: one array only. */
tutti_status tutti_all_gather_rows(tutti_group* group, const tutti_array* locals, size_t count,
                                   const int64_t* rows, const tutti_call_options* options,
                                   tutti_result** result, tutti_work** work);
/** Array 0 is [W, max n_r, ...], with `fill` after each rank's last row. */
tutti_status tutti_all_gather_padded(tutti_group* group, const tutti_array* local, double fill,
                                     const int64_t* rows, const tutti_call_options* options,
                                     tutti_result** result, tutti_work** work);
/** tutti_all_gather_rows() of one array, with the rows on root only and [0] on other ranks. */
tutti_status tutti_gather_rows(tutti_group* group, const tutti_array* local, int32_t root,
                               const int64_t* rows, const tutti_call_options* options,
                               tutti_result** result, tutti_work** work);
/** Array 0 has this rank's rows of root's `whole`. `whole` and `rows` are read on root only. */
tutti_status tutti_scatter_rows(tutti_group* group, const tutti_array* whole, int32_t root,
                                const int64_t* rows, const tutti_call_options* options,
                                tutti_result** result);
/** Array 0 has this rank's rows of (op over ranks of whole [sum of rows, ...]). */
tutti_status tutti_reduce_scatter_rows(tutti_group* group, const tutti_array* whole,
                                       const int64_t* rows, int32_t op,
                                       const tutti_call_options* options, tutti_result** result,
                                       tutti_work** work);
/** Sends block j of in [sum of send_rows, ...] to rank j; null: equal blocks. Array 0 has the rows
   for this rank, in rank order; result rows: their number from each rank. */
tutti_status tutti_all_to_all_rows(tutti_group* group, const tutti_array* in,
                                   const int64_t* send_rows, const tutti_call_options* options,
                                   tutti_result** result, tutti_work** work);
/** The lists of all ranks, one behind the other; result rows: the length of each rank's list. */
tutti_status tutti_gather_all_tensors(tutti_group* group, const tutti_array* locals, size_t count,
                                      const tutti_call_options* options, tutti_result** result);
/** An array of u8 from each rank. */
tutti_status tutti_all_gather_bytes(tutti_group* group, const void* local, size_t bytes,
                                    const tutti_call_options* options, tutti_result** result);
/** Array 0 has root's bytes, which are read on root only. */
tutti_status tutti_broadcast_bytes(tutti_group* group, const void* data, size_t bytes, int32_t root,
                                   const tutti_call_options* options, tutti_result** result);

/** The sum over ranks of `sum`, divided by that of `count`: tutti/sync.hpp. */
tutti_status tutti_global_mean(tutti_group* group, double sum, double count,
                               const tutti_call_options* options, double* mean);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
