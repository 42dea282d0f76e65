#include <tutti/ddp/gradient_reducer.hpp>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/ddp/hooks.hpp>

#include "c/values.hpp"
#include "c/works.hpp"

using namespace tutti::c_abi;  // NOLINT(google-build-using-namespace)

struct tutti_reducer {
  tutti::ddp::GradientReducer reducer;
  std::vector<tutti::ddp::GradientReducer::NoSync> scopes{};
};

namespace tutti::c_abi {
namespace {

std::vector<ddp::Parameter> parameters_of(const tutti_parameter* list, std::size_t count) {
  (void)list_of(list, count, "a list of parameters");
  std::vector<ddp::Parameter> all;
  for (std::size_t i = 0; i < count; ++i) {
    const auto from = read(element(list, i));
    all.push_back({.name = std::string(text(from.name)), .value = view(from.value)});
  }
  return all;
}

ddp::ReducerOptions reducer_options(const tutti_reducer_options& from) {
  ddp::ReducerOptions o;
  if (from.first_bucket_cap != 0) o.first_bucket_cap = from.first_bucket_cap;
  if (from.bucket_cap != 0) o.bucket_cap = from.bucket_cap;
  o.divisor = from.divisor;
  o.timeout = std::chrono::nanoseconds(from.timeout_ns);
  o.find_unused_parameters = from.find_unused_parameters != 0;
  o.gradient_as_bucket_view = from.gradient_as_bucket_view != 0;
  o.rebuild_buckets = from.keep_buckets == 0;
  o.check_steps = from.skip_step_checks == 0;
  o.average_over_rows = from.average_over_rows != 0;
  o.order_fixed = from.order_fixed != 0;
  return o;
}

Work call_hook(tutti_hook hook, void* context, ddp::Bucket& from) {
  tutti_group group{from.group().share()};
  const auto buffer = describe(from.buffer());
  const std::string name(from.call().name);
  tutti_bucket bucket{};
  TUTTI_INIT(bucket);
  bucket.buffer = &buffer;
  bucket.index = from.index();
  bucket.count = from.count();
  bucket.step = from.step();
  bucket.divisor = from.divisor();
  bucket.name = name.c_str();
  std::unique_ptr<tutti_work> work;
  call_back("of tutti_reducer_set_own_hook", [&] {
    tutti_work* made = nullptr;
    const auto status = hook(context, &group, &bucket, &made);
    work.reset(made);  // Also after an error.
    return status;
  });
  return work == nullptr ? Work() : std::move(work->plain());
}

ddp::CommHook hook_of(std::int32_t number) {
  switch (number) {
    case TUTTI_HOOK_ALL_REDUCE:
      return ddp::all_reduce_hook;
    case TUTTI_HOOK_NOOP:
      return ddp::noop_hook;
    case TUTTI_HOOK_FP16:
      return ddp::fp16_compress_hook();
    case TUTTI_HOOK_BF16:
      return ddp::bf16_compress_hook();
    default:
      fail(Errc::invalid_argument, fmt::format("hook {} is unknown; there are 0 to 3", number));
  }
}

ddp::GradientReducer& of(tutti_reducer* reducer) {
  return deref(reducer, "the reducer").reducer;
}
const ddp::GradientReducer& of(const tutti_reducer* reducer) {
  return deref(reducer, "the reducer").reducer;
}

}  // namespace
}  // namespace tutti::c_abi

extern "C" {

tutti_status tutti_reducer_create(tutti_group* group, const tutti_parameter* parameters,
                                  size_t count, const tutti_parameter* buffers, size_t buffer_count,
                                  const tutti_reducer_options* options, tutti_reducer** reducer) {
  return guard([&] {
    auto& out = handle(reducer);
    out = new tutti_reducer{tutti::ddp::GradientReducer(of(group), parameters_of(parameters, count),
                                                        reducer_options(read(options)),
                                                        parameters_of(buffers, buffer_count))};
  });
}

tutti_status tutti_reducer_mark_ready(tutti_reducer* reducer, size_t id,
                                      const tutti_array* gradient, void* producer) {
  return guard([&] { of(reducer).mark_ready(id, view(gradient), {producer}); });
}

tutti_status tutti_reducer_mark_unused(tutti_reducer* reducer, size_t id) {
  return guard([&] { of(reducer).mark_unused(id); });
}

tutti_status tutti_reducer_finish(tutti_reducer* reducer) {
  return guard([&] { of(reducer).finish(); });
}

tutti_status tutti_reducer_finish_rows(tutti_reducer* reducer, double rows) {
  return guard([&] { of(reducer).finish(rows); });
}

tutti_status tutti_reducer_step_empty(tutti_reducer* reducer) {
  return guard([&] { of(reducer).step_empty(); });
}

tutti_status tutti_reducer_no_sync(tutti_reducer* reducer, int32_t open) {
  return guard([&] {
    auto& scopes = deref(reducer, "the reducer").scopes;
    if (open != 0)
      scopes.push_back(reducer->reducer.no_sync());
    else if (!scopes.empty())
      scopes.pop_back();
    else
      tutti::fail(tutti::Errc::invalid_argument, "no scope of tutti_reducer_no_sync() is open");
  });
}

tutti_status tutti_reducer_broadcast_buffers(tutti_reducer* reducer, void* stream) {
  return guard([&] { of(reducer).broadcast_buffers({stream}); });
}

tutti_status tutti_reducer_set_divisor(tutti_reducer* reducer, double divisor) {
  return guard([&] { of(reducer).set_divisor(divisor); });
}

tutti_status tutti_reducer_set_group(tutti_reducer* reducer, tutti_group* group) {
  return guard([&] { of(reducer).set_group(of(group)); });
}

tutti_status tutti_reducer_gradient(const tutti_reducer* reducer, size_t id,
                                    tutti_array* gradient) {
  return guard([&] { write(gradient, describe(of(reducer).gradient(id))); });
}

tutti_status tutti_reducer_is_reduced(const tutti_reducer* reducer, int32_t* reduced) {
  return guard([&] { deref(reduced, "an out-parameter") = of(reducer).is_reduced() ? 1 : 0; });
}

tutti_status tutti_reducer_is_used(const tutti_reducer* reducer, size_t id, int32_t* used) {
  return guard([&] { deref(used, "an out-parameter") = of(reducer).is_used(id) ? 1 : 0; });
}

tutti_status tutti_reducer_set_hook(tutti_reducer* reducer, int32_t hook) {
  return guard([&] { of(reducer).set_hook(hook_of(hook)); });
}

tutti_status tutti_reducer_set_own_hook(tutti_reducer* reducer, tutti_hook hook, void* context) {
  return guard([&] {
    (void)deref(hook, "the hook");
    of(reducer).set_hook(
        [hook, context](tutti::ddp::Bucket& bucket) { return call_hook(hook, context, bucket); });
  });
}

tutti_status tutti_reducer_free(tutti_reducer* reducer) {
  delete reducer;
  return TUTTI_OK;
}

}  // extern "C"
