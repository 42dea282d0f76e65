#include "c/works.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include <tutti/coalesce.hpp>

using namespace tutti::c_abi;  // NOLINT(google-build-using-namespace)

struct tutti_coalesce {
  explicit tutti_coalesce(std::span<tutti::ProcessGroup* const> groups) : calls(groups) {}
  tutti::Coalesce calls;
};

extern "C" {

tutti_status tutti_work_wait(tutti_work* work) {
  return guard([&] { of(work).wait(); });
}

tutti_status tutti_work_wait_for(tutti_work* work, int64_t ns, int32_t* done) {
  return guard(
      [&] { deref(done, "an out-parameter") = of(work).wait_until(deadline_after(ns)) ? 1 : 0; });
}

tutti_status tutti_work_done(const tutti_work* work, int32_t* done) {
  return guard([&] { deref(done, "an out-parameter") = deref(work, "the work").done() ? 1 : 0; });
}

tutti_status tutti_work_block_stream(tutti_work* work, void* stream) {
  return guard([&] { of(work).block_stream({stream}); });
}

tutti_status tutti_work_on_done(tutti_work* work,
                                void (*f)(void* context, tutti_status status, const char* text),
                                void* context) {
  return guard([&] {
    (void)deref(f, "the function");
    of(work).on_done([f, context](const tutti::Error* error) {
      if (error == nullptr)
        f(context, TUTTI_OK, nullptr);
      else
        f(context, status_of(error->code()), error->what());
    });
  });
}

tutti_status tutti_work_then(tutti_work* work, tutti_status (*f)(void* context), void* context) {
  return guard([&] {
    (void)deref(f, "the function");
    auto& plain = of(work).plain();
    plain = std::move(plain).then(
        [f, context] { call_back("of tutti_work_then", [&] { return f(context); }); });
  });
}

tutti_status tutti_work_all(tutti_work** works, size_t count, tutti_work** all) {
  return guard([&] {
    auto& out = handle(all);
    const auto from = list_of(works, count, "the list of works");
    for (auto* work : from) (void)of(work).plain();  // Before any is taken.
    std::vector sorted(from.begin(), from.end());
    std::ranges::sort(sorted);
    if (std::ranges::adjacent_find(sorted) != sorted.end())
      tutti::fail(tutti::Errc::invalid_argument, "a Work is in the list twice");
    std::vector<tutti::Work> taken;
    for (auto* work : from) taken.push_back(std::move(work->work));
    for (auto* work : from) delete work;
    out = new tutti_work(tutti::Work::all(taken));
  });
}

tutti_status tutti_work_detach(tutti_work* work) {
  return guard([&] {
    std::move(of(work).plain()).detach();
    delete work;
  });
}

tutti_status tutti_work_free(tutti_work* work) {
  delete work;
  return TUTTI_OK;
}

tutti_status tutti_coalesce_begin(tutti_group* const* groups, size_t count,
                                  tutti_coalesce** calls) {
  return guard([&] {
    auto& out = handle(calls);
    std::vector<tutti::ProcessGroup*> all;
    for (auto* group : list_of(groups, count, "the list of groups")) all.push_back(&of(group));
    out = new tutti_coalesce(all);
  });
}

tutti_status tutti_coalesce_add(tutti_coalesce* calls, tutti_work* collected) {
  return guard([&] {
    auto& together = deref(calls, "the coalesced calls").calls;
    together.add(std::move(of(collected).plain()));
    delete collected;
  });
}

tutti_status tutti_coalesce_launch(tutti_coalesce* calls, tutti_work** work) {
  clear(work);
  return guard([&] {
    auto& together = deref(calls, "the coalesced calls").calls;
    if (work == nullptr)
      together.launch().wait();
    else
      *work = new tutti_work(together.launch());
  });
}

tutti_status tutti_coalesce_free(tutti_coalesce* calls) {
  delete calls;
  return TUTTI_OK;
}

}  // extern "C"
