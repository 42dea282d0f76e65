#include "c/values.hpp"
#include "c/works.hpp"

// The verbs of ProcessGroup. Each blocks without a `work`, and is the async form otherwise.

using namespace tutti::c_abi;  // NOLINT(google-build-using-namespace)

// The macros stay in this file. The arguments of the C++ verb may use `g`, the group, and `call`.
#define TUTTI_C_VERB(function, verb, params, args)                                       \
  tutti_status tutti_##function(tutti_group* group,                                      \
                                TUTTI_C_PARAMS params const tutti_call_options* options, \
                                tutti_work** work) {                                     \
    return guard([&] {                                                                   \
      clear(work);                                                                       \
      auto& g = of(group);                                                               \
      const Call call(options);                                                          \
      if (work == nullptr)                                                               \
        g.verb args;                                                                     \
      else                                                                               \
        *work = new tutti_work(g.verb##_async args);                                     \
    });                                                                                  \
  }
#define TUTTI_C_PARAMS(...) __VA_ARGS__ __VA_OPT__(, )

extern "C" {

TUTTI_C_VERB(all_reduce, all_reduce, (const tutti_array* in, const tutti_array* out, int32_t op),
             (view(in), view(out), call.op(op), call.options()))
TUTTI_C_VERB(broadcast, broadcast, (const tutti_array* data, int32_t root),
             (view(data), root, call.options()))
TUTTI_C_VERB(reduce, reduce,
             (const tutti_array* in, const tutti_array* out, int32_t root, int32_t op),
             (view(in), view(out), root, call.op(op), call.options()))
TUTTI_C_VERB(all_gather, all_gather,
             (const tutti_array* in, const tutti_array* out, const int64_t* of_ranks),
             (view(in), view(out), rows(g, of_ranks), call.options()))
TUTTI_C_VERB(all_gather_list, all_gather, (const tutti_array* in, const tutti_array* outs),
             (view(in), views(outs, static_cast<std::size_t>(g.size())), call.options()))
TUTTI_C_VERB(reduce_scatter, reduce_scatter,
             (const tutti_array* in, const tutti_array* out, const int64_t* of_ranks, int32_t op),
             (view(in), view(out), rows(g, of_ranks), call.op(op), call.options()))
TUTTI_C_VERB(all_to_all, all_to_all,
             (const tutti_array* in, const tutti_array* out, const int64_t* send_rows,
              const int64_t* recv_rows),
             (view(in), view(out), rows(g, send_rows), rows(g, recv_rows), call.options()))
TUTTI_C_VERB(all_to_all_list, all_to_all, (const tutti_array* ins, const tutti_array* outs),
             (const_views(ins, static_cast<std::size_t>(g.size())),
              views(outs, static_cast<std::size_t>(g.size())), call.options()))
TUTTI_C_VERB(gather, gather,
             (const tutti_array* in, const tutti_array* out, int32_t root, const int64_t* of_ranks),
             (view(in), view(out), root, rows(g, of_ranks), call.options()))
TUTTI_C_VERB(scatter, scatter,
             (const tutti_array* in, const tutti_array* out, int32_t root, const int64_t* of_ranks),
             (view(in), view(out), root, rows(g, of_ranks), call.options()))
TUTTI_C_VERB(scan, scan, (const tutti_array* in, const tutti_array* out, int32_t op),
             (view(in), view(out), call.op(op), call.options()))
TUTTI_C_VERB(exclusive_scan, exclusive_scan,
             (const tutti_array* in, const tutti_array* out, int32_t op),
             (view(in), view(out), call.op(op), call.options()))
TUTTI_C_VERB(send, send, (const tutti_array* data, int32_t peer, int32_t tag),
             (view(data), peer, tag, call.options()))
TUTTI_C_VERB(sendrecv, sendrecv,
             (const tutti_array* in, int32_t to, const tutti_array* out, int32_t from, int32_t tag),
             (view(in), to, view(out), from, tag, call.options()))
TUTTI_C_VERB(barrier, barrier, (), (call.options()))

tutti_status tutti_monitored_barrier(tutti_group* group, const tutti_call_options* options) {
  return guard([&] { of(group).monitored_barrier(Call(options).options()); });
}

tutti_status tutti_recv(tutti_group* group, const tutti_array* data, int32_t peer, int32_t tag,
                        int32_t* source, const tutti_call_options* options, tutti_work** work) {
  return guard([&] {
    clear(work);
    auto& g = of(group);
    const Call call(options);
    if (work != nullptr) {
      *work = new tutti_work(g.recv_async(view(data), peer, tag, call.options(), source));
      return;
    }
    const int sender = g.recv(view(data), peer, tag, call.options());
    if (source != nullptr) *source = sender;
  });
}

}  // extern "C"

#undef TUTTI_C_PARAMS
#undef TUTTI_C_VERB
