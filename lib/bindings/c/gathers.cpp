#include <tutti/gather.hpp>

#include <utility>

#include <tutti/sync.hpp>

#include "c/values.hpp"
#include "c/works.hpp"

using namespace tutti::c_abi;  // NOLINT(google-build-using-namespace)

namespace tutti::c_abi {

// Used by PendingWork too, which finds them by their arguments' namespaces.
static void fill(Content& to, Tensor&& from) {
  to.add(std::move(from));
}
static void fill(Content& to, GatheredRows&& from) {
  to.add(std::move(from.data));
  to.set_rows(from.rows);
}
static void fill(Content& to, PaddedRows&& from) {
  to.add(std::move(from.data));
  to.set_rows(from.rows);
}
static void fill(Content& to, GatheredArrays&& from) {
  for (auto& array : from.data) to.add(std::move(array));
  to.set_rows(from.rows);
}

/// Calls `blocking` for the value of a result, or `async` for its Pending.
template <typename Blocking, typename Async>
static tutti_status gather_call(tutti_group* group, const tutti_call_options* options,
                                tutti_result** result, tutti_work** work, const Blocking& blocking,
                                const Async& async) noexcept {
  clear(work);
  return guard([&] {
    auto& out = handle(result);
    auto& g = of(group);
    const Call call(options);
    auto made = std::make_unique<tutti_result>();
    if (work == nullptr)
      fill(*made->content, blocking(g, call));
    else
      *work = new PendingWork(async(g, call), made->content, call.memory());
    out = made.release();
  });
}

}  // namespace tutti::c_abi

extern "C" {

tutti_status tutti_exchange_rows(tutti_group* group, int64_t rows,
                                 const tutti_call_options* options, int64_t* rows_of_ranks) {
  return guard([&] {
    auto& to = deref(rows_of_ranks, "an out-parameter");
    std::ranges::copy(tutti::exchange_rows(of(group), rows, Call(options).options()).counts(), &to);
  });
}

tutti_status tutti_all_gather_rows(tutti_group* group, const tutti_array* locals, size_t count,
                                   const int64_t* rows, const tutti_call_options* options,
                                   tutti_result** result, tutti_work** work) {
  if (count == 1)
    return gather_call(
        group, options, result, work,
        [&](auto& g, const Call& call) {
          return tutti::all_gather_rows(g, view(locals), layout(g, rows), call.options());
        },
        [&](auto& g, const Call& call) {
          return tutti::all_gather_rows_async(g, view(locals), layout(g, rows), call.options());
        });
  clear(work);
  return give_result(result, [&](Content& to) {
    if (work != nullptr)
      tutti::fail(tutti::Errc::unsupported,
                  "tutti_all_gather_rows: an async call gathers one array");
    auto& g = of(group);
    fill(to, tutti::all_gather_rows(g, const_views(locals, count), layout(g, rows),
                                    Call(options).options()));
  });
}

// A function with both forms. Its arguments may use `g`, the group, and `call`. The macro stays in
// this file.
#define TUTTI_C_GATHER(verb, params, args)                                                         \
  tutti_status tutti_##verb(tutti_group* group,                                                    \
                            TUTTI_C_GATHER_PARAMS params const tutti_call_options* options,        \
                            tutti_result** result, tutti_work** work) {                            \
    return gather_call(                                                                            \
        group, options, result, work, [&](auto& g, const Call& call) { return tutti::verb args; }, \
        [&](auto& g, const Call& call) { return tutti::verb##_async args; });                      \
  }
#define TUTTI_C_GATHER_PARAMS(...) __VA_ARGS__,

TUTTI_C_GATHER(all_gather_padded, (const tutti_array* local, double fill, const int64_t* rows),
               (g, view(local), fill, layout(g, rows), call.options()))
TUTTI_C_GATHER(gather_rows, (const tutti_array* local, int32_t root, const int64_t* rows),
               (g, view(local), root, layout(g, rows), call.options()))
TUTTI_C_GATHER(reduce_scatter_rows, (const tutti_array* whole, const int64_t* rows, int32_t op),
               (g, view(whole), layout(g, rows), call.op(op), call.options()))
TUTTI_C_GATHER(all_to_all_rows, (const tutti_array* in, const int64_t* send_rows),
               (g, view(in), tutti::c_abi::rows(g, send_rows), call.options()))
#undef TUTTI_C_GATHER_PARAMS
#undef TUTTI_C_GATHER

tutti_status tutti_scatter_rows(tutti_group* group, const tutti_array* whole, int32_t root,
                                const int64_t* rows, const tutti_call_options* options,
                                tutti_result** result) {
  return give_result(result, [&](Content& to) {
    auto& g = of(group);
    fill(to, tutti::scatter_rows(g, view(whole), layout(g, rows), root, Call(options).options()));
  });
}

tutti_status tutti_gather_all_tensors(tutti_group* group, const tutti_array* locals, size_t count,
                                      const tutti_call_options* options, tutti_result** result) {
  return give_result(result, [&](Content& to) {
    auto& g = of(group);
    auto lists = tutti::gather_all_tensors(g, const_views(locals, count), Call(options).options());
    for (auto& list : lists) {
      to.rows.push_back(static_cast<std::int64_t>(list.size()));
      for (auto& array : list) to.add(std::move(array));
    }
  });
}

tutti_status tutti_all_gather_bytes(tutti_group* group, const void* local, size_t bytes,
                                    const tutti_call_options* options, tutti_result** result) {
  return give_result(result, [&](Content& to) {
    const auto mine = text_of(local, bytes);
    for (const auto& of_rank : tutti::all_gather_bytes(of(group), mine, Call(options).options()))
      to.add(std::string_view(of_rank));
  });
}

tutti_status tutti_broadcast_bytes(tutti_group* group, const void* data, size_t bytes, int32_t root,
                                   const tutti_call_options* options, tutti_result** result) {
  return give_result(result, [&](Content& to) {
    auto& g = of(group);
    std::string all;
    if (g.rank() == root) all = text_of(data, bytes);
    tutti::broadcast_bytes(g, all, root, Call(options).options());
    to.add(std::string_view(all));
  });
}

tutti_status tutti_global_mean(tutti_group* group, double sum, double count,
                               const tutti_call_options* options, double* mean) {
  return guard([&] {
    deref(mean, "an out-parameter") =
        tutti::global_mean(of(group), sum, count, Call(options).options());
  });
}

}  // extern "C"
