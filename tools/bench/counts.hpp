#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/row_layout.hpp>

namespace tutti::tool {

/// How S is cut into the ranks' blocks: --counts. A value type.
class Counts {
 public:
  /// Reads "even", "last-short", "one-empty", "mild", "linear", "zipf:A", "one-only", "file:PATH".
  /// @throws Failure usage, naming the forms that there are, or what is wrong with the file.
  static Counts parse(std::string_view text);

  Counts() = default;  ///< Even.
  const std::string& name() const noexcept { return name_; }
  bool is_even() const noexcept { return kind_ == Kind::even; }

  /// The blocks of `total` elements: whole numbers in proportion to the weights of the ranks, which
  /// add up to it. Integer arithmetic: every rank comes to the same.
  /// @throws Failure usage when so many ranks cannot be laid out like this.
  RowLayout cut(std::int64_t total, int ranks) const;

  friend bool operator==(const Counts&, const Counts&) = default;

 private:
  enum class Kind : std::uint8_t {
    even,
    last_short,
    one_empty,
    mild,
    linear,
    one_only,
    zipf,
    file
  };
  std::vector<std::int64_t> weights(int ranks) const;

  Kind kind_ = Kind::even;
  std::string name_ = "even";
  double exponent_ = 0;                  // zipf
  std::vector<std::int64_t> numbers_{};  // file
};

/// What the forms mean, in lines, for --help-sizes.
extern const std::string_view counts_syntax;

}  // namespace tutti::tool
