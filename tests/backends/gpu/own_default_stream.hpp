#pragma once

#include "cuda/device.hpp"

// Ranks that are threads of one process and share a device: each has a table of CUDA's functions of
// its own. On the one default stream of a device the call of a rank would wait for that of another
// rank, which waits for the first. So the table has a stream of the rank's own in its place. The
// backend has a lock for each device and table, so that the ranks do not hold each other's.

namespace tutti::gpu {

/// The most ranks that share a device. Tests of four ranks make groups that wait for a fifth one.
inline constexpr int most_ranks = 8;

namespace detail {

template <int Rank>
struct DefaultStream {
  static inline const backend::cuda::CudaApi* real = nullptr;
  static inline cudaStream_t stream = nullptr;

  static cudaStream_t in_place_of(cudaStream_t given) { return given == nullptr ? stream : given; }
  template <typename T>
  static T in_place_of(T other) {
    return other;
  }
};

/// A function of the table with the rank's stream in place of the default stream.
template <int Rank, auto Field>
struct OnOwnStream;
template <int Rank, typename... Args, cudaError_t (*backend::cuda::CudaApi::*Field)(Args...)>
struct OnOwnStream<Rank, Field> {
  static cudaError_t call(Args... args) {
    using Stream = DefaultStream<Rank>;
    return (Stream::real->*Field)(Stream::in_place_of(args)...);
  }
};

template <int Rank>
const backend::cuda::CudaApi& make_table(const backend::cuda::CudaApi& real, int device) {
  using backend::cuda::CudaApi;
  static const CudaApi table = [&] {
    DefaultStream<Rank>::real = &real;
    const backend::cuda::DeviceScope scope(real, device);
    check(real, real.stream_create_with_flags(&DefaultStream<Rank>::stream, cudaStreamNonBlocking),
          "cudaStreamCreateWithFlags");
    CudaApi made = real;
#define TUTTI_OWN(field, function, parameters) \
  made.field = OnOwnStream<Rank, &CudaApi::field>::call;
    TUTTI_CUDA_FUNCTIONS(TUTTI_OWN)
#undef TUTTI_OWN
    made.at_graph_end = OnOwnStream<Rank, &CudaApi::at_graph_end>::call;
    return made;
  }();
  return table;
}

/// make_table<rank>().
template <int Rank = 0>
const backend::cuda::CudaApi& make_table_of(int rank, const backend::cuda::CudaApi& real,
                                            int device) {
  if constexpr (Rank + 1 < most_ranks)
    if (rank > Rank) return make_table_of<Rank + 1>(rank, real, device);
  return make_table<Rank>(real, device);
}

}  // namespace detail

/// The table of `rank`, which is less than most_ranks: `real` but for the default stream. Made at
/// the first call. @throws Error.
inline const backend::cuda::CudaApi& with_own_default_stream(const backend::cuda::CudaApi& real,
                                                             int device, int rank) {
  if (rank < 0 || rank >= most_ranks)
    internal::failf(Errc::unsupported, "rank {} shares a device, which at most {} ranks may", rank,
                    most_ranks);
  return detail::make_table_of(rank, real, device);
}

/// Ends the streams of all ranks, after which their tables are not used any more.
template <int Rank = most_ranks - 1>
void end_default_streams() {
  using Stream = detail::DefaultStream<Rank>;
  if (Stream::stream != nullptr) (void)Stream::real->stream_destroy(Stream::stream);
  Stream::stream = nullptr;
  if constexpr (Rank > 0) end_default_streams<Rank - 1>();
}

}  // namespace tutti::gpu
