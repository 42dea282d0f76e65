#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tutti/ddp/bucket.hpp>
#include <tutti/registration.hpp>

#include "ddp/layout.hpp"

namespace tutti::ddp {

/// Holds all gradients: one array per dtype, which contains the buckets one after the other.
class GradientArrays {
 public:
  /// Collective: registers the arrays, which start as zeros.
  /// @param large  gradients of this many bytes or more lie behind the others of their bucket.
  /// @param generation  of the buckets.
  GradientArrays(ProcessGroup& group, std::span<const Parameter> parameters,
                 const std::vector<Ids>& buckets, const CallOptions& options, std::size_t large,
                 int generation);

  /// Moves the gradients with their values into other buckets. No call may be under way.
  void rearrange(const std::vector<Ids>& buckets);
  /// Collective. Overwrites the parameters of every rank with rank 0's values. The values pass
  /// through the arrays, which are then set to zero.
  void broadcast_values(const CallOptions& options);

  std::span<Bucket> buckets() noexcept { return buckets_; }
  std::span<const Bucket> buckets() const noexcept { return buckets_; }
  int generation() const noexcept { return generation_; }
  int bucket_of(std::size_t id) const noexcept { return locations_[id].bucket; }
  const TensorView& gradient(std::size_t id) const noexcept { return locations_[id].place; }
  bool is_large(std::size_t id) const noexcept { return parameters_[id].value.bytes() >= large_; }
  /// Returns an error text if the array passed for a gradient is wrong; otherwise an empty text.
  /// @param in_bucket  true: the array must be the gradient's place in its bucket.
  std::string problem_with(std::size_t id, const TensorView& gradient, bool in_bucket) const;
  void clear(std::size_t id, Stream stream);
  /// Tells whether large gradients are copied too. At first they are not.
  void set_copied(bool large) noexcept;
  /// Copies a gradient into its bucket or back, in the order of the stream.
  void copy(void* to, const void* from, std::size_t bytes, Stream stream);
  /// Blocks the host until the work queued on a stream of the device has ended.
  void wait_for(Stream stream);

 private:
  struct Array {
    DType dtype;
    Tensor data;
    Registration registration;
  };
  struct Location {
    int bucket = 0;
    TensorView place;
  };

  /// True if the address lies in one of the arrays.
  bool contains(const void* data) const noexcept;
  void lay_out(const std::vector<Ids>& buckets);
  void clear(const TensorView& view, Stream stream);
  TensorView all_of(Array& array) { return array.data; }

  ProcessGroup& group_;
  std::span<const Parameter> parameters_;
  std::size_t large_;
  int generation_;
  Tensor probe_;  // The byte that wait_for() copies; no kernel uses it.
  std::vector<Array> arrays_;
  bool past_cache_ = false;  // Copies on the host need not stay in the cache.
  std::vector<Bucket> buckets_;
  std::vector<Location> locations_;  // Indexed by parameter id.
};

}  // namespace tutti::ddp
