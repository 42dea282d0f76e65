#include <tutti/dtype.hpp>

#include <array>

namespace [[gnu::visibility("default")]] tutti {
namespace {

constexpr std::array<std::string_view, dtype_count> dtype_names{
    "u8",  "i8",   "i16", "u16", "i32",    "u32",    "i64",       "u64",       "boolean",
    "f16", "bf16", "f32", "f64", "f8e4m3", "f8e5m2", "complex64", "complex128"};

}  // namespace

std::string_view name_of(DType t) noexcept {
  const auto index = static_cast<std::size_t>(t);
  return index < dtype_names.size() ? dtype_names[index] : "unknown dtype";
}

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  if (name == "bool") return DType::boolean;
  for (std::size_t i = 0; i < dtype_names.size(); ++i)
    if (dtype_names[i] == name) return static_cast<DType>(i);
  return std::nullopt;
}

}  // namespace tutti
