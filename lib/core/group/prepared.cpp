#include <tutti/prepared.hpp>

#include <cstddef>
#include <utility>

#include "backend/record.hpp"
#include "backend/row_lists.hpp"
#include "group/prepared_list.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"

namespace tutti::internal {

PreparedList::PreparedList(std::shared_ptr<Core> core, std::span<const Op> ops,
                           const CallOptions& options)
    : core_(std::move(core)), ops_(ops.begin(), ops.end()), name_(options.name) {
  reserve_row_lists(ops_, rows_);
  for (Op& op : ops_) copy_row_lists(op, rows_);
  call_ = {.order_fixed = options.order_fixed, .name = name_, .kept = &kept_};
}

Work PreparedList::launch(const CallOptions& options) {
  if (call_.prepared < 3) {
    ++call_.prepared;
    Core::sign(ops_, call_);
  }
  return core_->launch_prepared(ops_, call_, options);
}

PreparedList::~PreparedList() {
  if (core_->forked()) (void)kept_.release();  // Of the parent's backend.
}

void PreparedList::check_not_collecting() const {
  if (core_->collects_here())
    failf(Errc::invalid_argument,
          "Prepared: group '{}' is collecting calls for a Coalesce; call launch() of the Coalesce "
          "first",
          core_->options().name);
}

Work Core::launch_prepared(std::span<const Op> ops, const Call& fixed, const CallOptions& options) {
  const auto operation = operation_of(ops);
  return guarded(operation, [&] {
    check_usable(operation);
    Call call = fixed;
    call.seq = next_seq_.fetch_add(1, std::memory_order_relaxed);
    call.stream = options.stream;
    call.deadline = options.deadline;
    call.timeout = timeout_of(options);
    if (const auto why = refusal_of([&] { check_timeout(options); }))
      refuse(ops, call, *why, ops.front());
    return send(ops, call, ops.front(), Wait::nothing);
  });
}

}  // namespace tutti::internal

namespace [[gnu::visibility("default")]] tutti {

Prepared::Prepared(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Prepared::Prepared(Prepared&&) noexcept = default;
Prepared& Prepared::operator=(Prepared&&) noexcept = default;
Prepared::~Prepared() = default;

Work Prepared::launch(const CallOptions& options) {
  if (impl_ == nullptr)
    fail(Errc::invalid_argument,
         "this Prepared has been moved from; use the one that it was moved to");
  auto& lists = impl_->lists;
  return internal::without_bad_alloc([&] {
    for (const auto& list : lists) list.check_not_collecting();  // Before any group has its launch.
    if (lists.size() == 1) return lists.front().launch(options);
    std::size_t begun = 0;
    try {
      std::vector<Work> works;
      works.reserve(lists.size());
      while (begun < lists.size()) works.push_back(lists[begun++].launch(options));
      return Work::all(works);
    } catch (...) {
      const Error error = internal::to_error(std::current_exception());
      for (; begun < lists.size(); ++begun) lists[begun].break_with(error);
      throw;
    }
  });
}

}  // namespace tutti
