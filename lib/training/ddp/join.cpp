#include <tutti/ddp/join.hpp>

#include <array>
#include <string>

#include <fmt/format.h>

#include <tutti/gather.hpp>
#include <tutti/sync.hpp>

#include "values/fail.hpp"

namespace tutti {
namespace ddp {
namespace {

/// Collective. Lists the ranks without and with a batch, in words.
std::string describe_ranks(ProcessGroup& group, bool has_batch, const CallOptions& options) {
  const auto all = all_gather_bytes(group, has_batch ? "1" : "0", options);
  std::array<std::string, 2> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    ranks[all[rank] == "1" ? 1 : 0] += fmt::format(" {}", rank);
  return fmt::format("ranks{} have no batch left, ranks{} have one", ranks[0], ranks[1]);
}

ProcessGroup group_of(const GradientReducer& reducer) {
  if (reducer.buckets().empty())
    internal::failf(Errc::invalid_argument,
                    "Join: the reducer has no parameters; it needs at least one");
  return reducer.buckets()[0].group().share();
}

}  // namespace
}  // namespace ddp

namespace [[gnu::visibility("default")]] ddp {

Join::Join(GradientReducer& reducer, const JoinOptions& options)
    : reducer_(&reducer), group_(group_of(reducer)), options_(options) {}

bool Join::next(bool has_batch, const CallOptions& options) {
  auto call = options;
  if (call.name.empty()) call.name = "ddp join";
  const auto sum = all_reduce_number(group_, std::int64_t{has_batch}, ReduceOp::sum, call);
  with_batch_ = static_cast<int>(sum);
  const bool all = with_batch_ == group_.size();
  if (options_.throw_on_early_termination && !all && with_batch_ != 0)
    internal::failf(Errc::mismatch,
                    "Join: {}; give all ranks the same number of batches, or set "
                    "throw_on_early_termination to false",
                    describe_ranks(group_, has_batch, call));
  if (!options_.divide_by_initial_world_size) reducer_->set_divisor(with_batch_);
  if (with_batch_ == 0) return false;
  if (!has_batch && options_.make_empty_steps) reducer_->step_empty();
  return true;
}

}  // namespace ddp
}  // namespace tutti
