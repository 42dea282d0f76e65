#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include <tutti/tensor.hpp>

#include "values/bytes.hpp"

namespace tutti::ddp {

/// Arrays of f32 or f64 in host memory, by a number. A hook keeps here what has to outlive its
/// buckets: while they are rebuilt, and in a checkpoint.
class KeptArrays {
 public:
  void put(std::uint64_t key, const ConstTensorView& array);
  /// Moves the array with this key to `to`, if there is one of this dtype and number of elements.
  bool take(std::uint64_t key, const TensorView& to);
  /// The same. @throws Error invalid_argument if there is one that does not fit. `what`: "the error
  /// of parameter".
  bool take_or_throw(std::uint64_t key, const TensorView& to, std::string_view what);
  void clear() noexcept { arrays_.clear(); }

  void write(internal::Writer& out) const;
  /// @throws Error of the reader.
  static KeptArrays read(internal::Reader& in);

 private:
  struct Array {
    DType dtype = DType::f32;
    std::vector<std::byte> bytes;
  };
  std::map<std::uint64_t, Array> arrays_;
};

}  // namespace tutti::ddp
