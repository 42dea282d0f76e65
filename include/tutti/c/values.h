/** @file
   Status, constants, structs and handles of the C ABI: include tutti/c/tutti.h. */
#ifndef TUTTI_C_VALUES_H
#define TUTTI_C_VALUES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/** The version of this header. It grows with each addition; nothing is removed or changed. */
#define TUTTI_ABI_VERSION 1
/** The version of the library: if it is lower than the header's, functions may be missing. */
int32_t tutti_abi_version(void);
const char* tutti_version(void); /**< "0.1.0" */

/** Sets all fields of the struct x to 0, and its `size`. */
#define TUTTI_INIT(x) (memset(&(x), 0, sizeof(x)), (x).size = sizeof(x))

/** TUTTI_OK, or the code of an error. */
typedef int32_t tutti_status;
/** Values of tutti_status: tutti::Errc; tutti/error.hpp. */
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

/** The text of this thread's last error, until its next error; "" before the first one. */
const char* tutti_last_error(void);
/** The parts of this thread's last error (tutti::Error::Where). -1 and "": unknown. Pointers are
   valid as long as the text. */
typedef struct tutti_error {
  size_t size;            /**< sizeof the struct: TUTTI_INIT sets it. */
  tutti_status code;      /**< TUTTI_OK before the first error. */
  int32_t rank;           /**< The rank that caused it. */
  int64_t seq;            /**< The call's number in its group. */
  const char *group,      /**< Name of the group: "world/0.1". */
      *operation,         /**< Name of the verb: "all_reduce". */
      *message;           /**< The text without the other parts. */
  const int32_t* missing; /**< The ranks that had not entered the call. */
  int32_t missing_count;  /**< Length of `missing`. */
  int32_t earlier;        /**< 1: the group broke before. */
} tutti_error;
/** Writes the parts. An error of this function itself leaves text and parts as they are. */
tutti_status tutti_last_error_parts(tutti_error* parts);
const char* tutti_status_name(tutti_status status); /**< "ok", "timeout", ... */

/** Element types: tutti::DType; tutti/dtype.hpp. */
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

/** Reductions: tutti::ReduceOp, tutti/reduce_op.hpp. Scale and function: in tutti_call_options. */
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
/** Sets inout[i] = in[i] op inout[i]. In an async call it runs on another thread. */
typedef void (*tutti_reduce_function)(const void* in, void* inout, int64_t count, uint8_t dtype,
                                      void* context);

/** tutti::Operation, for tutti_group_supports(). */
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
/** The peer of a tutti_recv() from any rank: tutti::any_peer. */
#define TUTTI_ANY_PEER INT32_MIN

/** Types of devices: tutti::DeviceType. 0 counts as TUTTI_CPU. */
enum { TUTTI_CPU = 1, TUTTI_CUDA = 2, TUTTI_EXTENSION = 12 };
/** Levels of a log: tutti::LogLevel. */
enum { TUTTI_LOG_ERROR = 1, TUTTI_LOG_WARNING = 2, TUTTI_LOG_INFO = 3, TUTTI_LOG_DEBUG = 4 };

/** The largest number of dimensions of an array. */
#define TUTTI_MAX_DIMS 8
/** A borrowed, contiguous, row-major array (tutti::TensorView); a null pointer is an empty one. A
   const array is a struct that does not change; the data of an output do. A list of arrays is an
   array of structs of equal `size`. */
typedef struct tutti_array {
  size_t size;                  /**< sizeof the struct: TUTTI_INIT sets it. */
  void* data;                   /**< The first element. */
  int32_t dtype;                /**< TUTTI_U8 to TUTTI_COMPLEX128. */
  int32_t ndim;                 /**< 0 to TUTTI_MAX_DIMS; 0: one element. */
  int32_t device_type;          /**< TUTTI_CPU (or 0), TUTTI_CUDA or TUTTI_EXTENSION. */
  int32_t device_index;         /**< The number among devices of the type, from 0. */
  int64_t dims[TUTTI_MAX_DIMS]; /**< Sizes of the first `ndim` dimensions. */
} tutti_array;
/** An array [n] on the host. */
static inline tutti_array tutti_vector(const void* data, int32_t dtype, int64_t n) {
  tutti_array array;
  TUTTI_INIT(array);
  memcpy(&array.data, &data, sizeof(data)); /* A cast would warn in user code. */
  array.dtype = dtype;
  array.ndim = 1;
  array.dims[0] = n;
  return array;
}

typedef struct tutti_group tutti_group;       /**< tutti::ProcessGroup. */
typedef struct tutti_work tutti_work;         /**< A call in flight: tutti::Work. */
typedef struct tutti_result tutti_result;     /**< Arrays of the library, and rows of ranks. */
typedef struct tutti_store tutti_store;       /**< tutti::Store. */
typedef struct tutti_bytes tutti_bytes;       /**< The value that a tutti_store_functions writes. */
typedef struct tutti_coalesce tutti_coalesce; /**< tutti::Coalesce. */
typedef struct tutti_reducer tutti_reducer;   /**< tutti::ddp::GradientReducer. */
typedef struct tutti_registration tutti_registration; /**< tutti::Registration. */
typedef struct tutti_store_server tutti_store_server; /**< tutti::StoreServer. */

/** An allocator (tutti::Memory; tutti/memory.hpp). Functions are called from any thread. The
   context outlives the group and all arrays. `copy` may be null for host memory. */
typedef struct tutti_memory {
  size_t size;          /**< sizeof the struct: TUTTI_INIT sets it. */
  void* context;        /**< The first argument of the functions. */
  int32_t device_type;  /**< Of the memory, as in tutti_array. */
  int32_t device_index; /**< Of the memory, as in tutti_array. */
  /** Returns `bytes` bytes or more, aligned to 64, also for 0 bytes; null: failed. */
  void* (*allocate)(void* context, size_t bytes, void* stream);
  /** Frees a block. Work already queued on `stream` may still use it. */
  void (*release)(void* context, void* data, size_t bytes, void* stream);
  /** Copies in order on `stream`; if one side is host memory, returns after the copy has ended. */
  void (*copy)(void* context, void* to, const void* from, size_t bytes, void* stream);
} tutti_memory;

/** Options of a call: tutti::CallOptions; a null pointer has all defaults. */
typedef struct tutti_call_options {
  size_t size;                  /**< sizeof the struct: TUTTI_INIT sets it. */
  const char* name;             /**< Compared between ranks, and shown in errors. */
  int64_t timeout_ns;           /**< 0: the group's. */
  int64_t deadline_ns;          /**< A moment of CLOCK_MONOTONIC; 0: none. */
  void* stream;                 /**< On a device: of the inputs and outputs. */
  const tutti_memory* memory;   /**< Of arrays that the call returns. */
  double scale;                 /**< This rank's factor of TUTTI_PREMUL_SUM; 0 multiplies by 0. */
  tutti_reduce_function reduce; /**< Of TUTTI_CUSTOM, as the next two fields. */
  void* reduce_context;         /**< The last argument of `reduce`. */
  int32_t commutative;          /**< 1: `reduce` may combine in any order. Equal on all ranks. */
  int32_t order_fixed;          /**< 1: reduces in rank order; the same bits for every backend. */
  int32_t integer_avg;          /**< 1: allows TUTTI_AVG of integers, truncated toward zero. */
  int32_t reproducible;         /**< 1: the bits of a sum depend on its addends alone. */
} tutti_call_options;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
