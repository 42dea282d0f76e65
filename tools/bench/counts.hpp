#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/row_layout.hpp>

namespace tutti::tool {

/// The blocks of `total` elements: whole numbers in proportion to the weights of the ranks, which
/// add up to it. Integer arithmetic: every rank comes to the same.
RowLayout cut_by_weights(std::int64_t total, const std::vector<std::int64_t>& weights);

/// How S is cut into the ranks' blocks: --counts. A value type.
class Counts {
 public:
  /// Reads "even", "last-short", "one-empty", "mild", "linear", "zipf:A", "one-only", "file:PATH".
  /// @throws Failure usage, naming the forms that there are, or what is wrong with the file.
  static Counts parse(std::string_view text);

  Counts() = default;  ///< Even.
  const std::string& name() const noexcept { return name_; }
  bool is_even() const noexcept { return !weight_; }

  /// @throws Failure usage when so many ranks cannot be laid out like this.
  RowLayout cut(std::int64_t total, int ranks) const;

  friend bool operator==(const Counts& a, const Counts& b) { return a.name_ == b.name_; }

 private:
  using Weight = std::function<std::int64_t(int rank, int ranks)>;
  Counts(std::string_view name, Weight weight) : name_(name), weight_(std::move(weight)) {}

  std::string name_ = "even";
  Weight weight_{};  // Empty: all alike.
};

/// What the forms mean, in lines, for --help-sizes.
extern const std::string_view counts_syntax;

}  // namespace tutti::tool
