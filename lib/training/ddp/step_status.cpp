#include "ddp/step_status.hpp"

#include <fmt/format.h>

#include <tutti/gather.hpp>

#include "ddp/descriptions.hpp"
#include "values/hash.hpp"

namespace tutti::ddp {

StepStatus::StepStatus(ProcessGroup& group, std::span<const Parameter> parameters,
                       const ReducerOptions& options)
    : group_(group),
      parameters_(parameters),
      find_unused_(options.find_unused_parameters),
      exchanged_(options.check_steps || options.find_unused_parameters),
      words_(first_used + (find_unused_ ? parameters.size() : 0)),
      used_(parameters.size(), '-') {
  call_.timeout = options.timeout;
  call_.name = "ddp step";
  if (exchanged_)
    array_ = Tensor(group.memory(), Shape{static_cast<std::int64_t>(words_.size())}, DType::u64);
}

Work StepStatus::launch(std::span<const std::uint8_t> used, bool wrong, bool empty) {
  words_[0] = wrong ? static_cast<std::uint64_t>(group_.size() - group_.rank()) : 0;
  tutti::internal::Hash hash;
  for (std::size_t id = 0; id < used.size(); ++id) {
    used_[id] = empty ? '-' : used[id] != 0 ? '1' : '0';
    if (used[id] == 0) hash.add(id);
    if (find_unused_) words_[first_used + id] = used[id];
  }
  const bool compares = !find_unused_ && !empty;
  words_[1] = compares ? hash.value() : 0;
  words_[2] = compares ? ~hash.value() : 0;
  words_[3] = empty ? 1 : 0;
  group_.memory().copy(array_.data(), words_.data(), array_.bytes(), {});
  return group_.all_reduce_async(array_, ReduceOp::max, call_);
}

std::string StepStatus::read(const std::string& problem) {
  group_.memory().copy(words_.data(), array_.data(), array_.bytes(), {});
  if (words_[0] != 0) {
    const int rank = group_.size() - static_cast<int>(words_[0]);
    std::string text = rank == group_.rank() ? problem : "";
    broadcast_bytes(group_, text, rank, call_);
    return fmt::format("rank {}: {}", rank, text);
  }
  if (words_[1] == 0 && words_[2] == 0) return "";  // Nothing was compared.
  if (words_[1] != ~words_[2]) return find_difference();
  if (words_[3] != 0) learn_used();
  return "";
}

void StepStatus::learn_used() {
  if (words_[1] == tutti::internal::Hash().value()) {  // No parameter is unused.
    used_.assign(used_.size(), '1');
    return;
  }
  for (const auto& used : all_gather_bytes(group_, used_, call_))
    if (!used.starts_with('-')) used_ = used;
}

std::string StepStatus::find_difference() {
  const auto all = all_gather_bytes(group_, used_, call_);
  for (std::size_t id = 0; id < parameters_.size(); ++id) {
    std::string with;
    std::string without;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank][id] == '1') with += fmt::format(" {}", rank);
      if (all[rank][id] == '0') without += fmt::format(" {}", rank);
    }
    if (!with.empty() && !without.empty())
      return fmt::format(
          "{} has a gradient on ranks{} and is unused on ranks{}; set find_unused_parameters where "
          "ranks may differ",
          name_of(parameters_, id), with, without);
  }
  return "ranks have different unused parameters";
}

}  // namespace tutti::ddp
