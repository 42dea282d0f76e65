#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include <tutti/tensor.hpp>

#include "values/bytes.hpp"

namespace tutti::ddp {

/// Keeps arrays of f32 or f64 in host memory, each under a number. A hook uses it to keep state
/// while buckets are rebuilt and in checkpoints.
class KeptArrays {
 public:
  void put(std::uint64_t key, const ConstTensorView& array);
  /// Removes the array with this key, and copies it to `to` if dtype and number of elements are
  /// equal. Returns true if it was copied.
  bool take(std::uint64_t key, const TensorView& to);
  /// Does the same as take(), but keeps an array that does not fit.
  /// @throws Error invalid_argument if the array does not fit. Its text begins with `what`, for
  /// example "the error of parameter".
  bool take_or_throw(std::uint64_t key, const TensorView& to, std::string_view what);
  void clear() noexcept { arrays_.clear(); }

  void write(internal::Writer& out) const;
  /// @throws Error if bytes are missing, as Reader does.
  static KeptArrays read(internal::Reader& in);

 private:
  struct Array {
    DType dtype = DType::f32;
    std::vector<std::byte> bytes;
  };
  std::map<std::uint64_t, Array> arrays_;
};

}  // namespace tutti::ddp
