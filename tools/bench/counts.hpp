#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/row_layout.hpp>

namespace tutti::tool {

/// Divides `total` elements into blocks in proportion to the ranks' weights. Uses integer
/// arithmetic, so that every rank computes the same blocks.
RowLayout cut_by_weights(std::int64_t total, const std::vector<std::int64_t>& weights);

/// The division of S into the ranks' blocks: --counts. A value type.
class Counts {
 public:
  /// Reads "even", "last-short", "one-empty", "mild", "linear", "zipf:A", "one-only", "file:PATH".
  /// @throws Failure usage with the valid forms, or the error in the file.
  static Counts parse(std::string_view text);

  Counts() = default;  ///< Makes even counts.
  const std::string& name() const noexcept { return name_; }
  bool is_even() const noexcept { return !weight_; }

  /// @throws Failure usage for a number of ranks that these counts do not allow.
  RowLayout cut(std::int64_t total, int ranks) const;

  friend bool operator==(const Counts& a, const Counts& b) { return a.name_ == b.name_; }

 private:
  using Weight = std::function<std::int64_t(int rank, int ranks)>;
  Counts(std::string_view name, Weight weight) : name_(name), weight_(std::move(weight)) {}

  std::string name_ = "even";
  Weight weight_{};  // Empty: all equal.
};

/// The forms and their meaning, for --help-sizes.
extern const std::string_view counts_syntax;

}  // namespace tutti::tool
