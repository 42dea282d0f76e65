#include <tutti/reduce_op.hpp>

#include <array>

namespace [[gnu::visibility("default")]] tutti {
namespace {

constexpr std::array<std::string_view, reduce_op_count> reduce_op_names{
    "sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum", "custom"};

}  // namespace

std::string_view name_of(ReduceOp::Kind kind) noexcept {
  const auto index = static_cast<std::size_t>(kind);
  return index < reduce_op_names.size() ? reduce_op_names[index] : "unknown reduce op";
}

std::optional<ReduceOp::Kind> parse_reduce_op(std::string_view name) noexcept {
  if (name == "product") return ReduceOp::Kind::prod;
  if (name == "mean") return ReduceOp::Kind::avg;
  for (std::size_t i = 0; i < reduce_op_names.size(); ++i)
    if (reduce_op_names[i] == name) return static_cast<ReduceOp::Kind>(i);
  return std::nullopt;
}

}  // namespace tutti
