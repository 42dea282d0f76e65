#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tutti/ddp/bucket.hpp>
#include <tutti/registration.hpp>

#include "ddp/layout.hpp"

namespace tutti::ddp {

/// The memory of all gradients: an array for each dtype, in which the buckets lie one behind the
/// other.
class GradientArrays {
 public:
  /// Collective: registers the arrays. They hold zeros.
  GradientArrays(ProcessGroup& group, std::span<const Parameter> parameters,
                 const std::vector<Ids>& buckets, const CallOptions& call);

  /// Puts the gradients into other buckets, with their content. No call is under way.
  void rearrange(const std::vector<Ids>& buckets);
  /// Collective. Writes rank 0's values of the parameters to those of all ranks, by way of the
  /// arrays, which hold zeros again.
  void broadcast_values(const CallOptions& call);

  std::span<Bucket> buckets() noexcept { return buckets_; }
  std::span<const Bucket> buckets() const noexcept { return buckets_; }
  int bucket_of(std::size_t id) const noexcept { return locations_[id].bucket; }
  TensorView gradient(std::size_t id) const;
  /// What is wrong with the array of a gradient that was computed, or empty.
  /// @param in_bucket  it has to be at its place.
  std::string problem_with(std::size_t id, const TensorView& gradient, bool in_bucket) const;
  void clear(std::size_t id, Stream stream);
  /// Waits on the host for what is queued on a stream of the device.
  void wait_for(Stream stream);

 private:
  struct Array {
    DType dtype;
    Tensor data;
    Registration registration;
  };
  struct Location {
    int bucket = 0;
    std::size_t slice = 0;
  };

  /// Whether the address lies in one of the arrays.
  bool contains(const void* data) const noexcept;
  void lay_out(const std::vector<Ids>& buckets);
  void clear(const TensorView& view, Stream stream);
  TensorView all_of(Array& array) { return array.data; }

  ProcessGroup& group_;
  std::span<const Parameter> parameters_;
  Tensor probe_;  // For wait_for(): no kernel uses it.
  std::vector<Array> arrays_;
  std::vector<Bucket> buckets_;
  std::vector<Location> locations_;  // By id.
};

}  // namespace tutti::ddp
