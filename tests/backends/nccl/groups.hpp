#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include <tutti/process_group.hpp>

#include "backends/nccl/double/bare_rank.hpp"
#include "support/errors.hpp"

// Groups of the backend nccl over the double.

namespace tutti::test::nccl_double {

/// The duration of a slow kernel, long enough to tell whether the host waits for it.
constexpr std::chrono::milliseconds slow(100);

/// One rank of a group over the double.
struct Member {
  ProcessGroup& group;
  int rank;
  cudaStream_t compute;  ///< The stream of the program's kernels.
  cudaStream_t other;

  static constexpr std::int64_t count = 100;

  Stream stream() const { return {compute}; }
  TensorView make(std::int64_t n = count) const {
    void* data = group.memory().allocate(static_cast<std::size_t>(n) * sizeof(float), {compute});
    return {data, DType::f32, {n}, group.memory().device()};
  }
  void free(const TensorView& array) const {
    group.memory().release(array.data, array.bytes(), {compute});
  }
  /// A kernel of the program.
  void fill(const TensorView& array, float value, std::chrono::nanoseconds takes = {}) const {
    nccl_double::fill(compute, static_cast<float*>(array.data),
                      static_cast<std::size_t>(array.shape.numel()), value, takes);
  }
  std::vector<float> read(const TensorView& array, cudaStream_t on) const {
    std::vector<float> values(static_cast<std::size_t>(array.shape.numel()));
    group.memory().copy(values.data(), array.data, array.bytes(), {on});
    cuda().stream_synchronize(on);
    return values;
  }
  bool holds(const TensorView& array, float want) const {
    for (const float value : read(array, compute))
      if (value != want) return false;
    return true;
  }
};

struct GroupSetup {
  std::chrono::nanoseconds timeout = 10s;
  backend::nccl::Apis apis = nccl_double::apis();
  std::chrono::nanoseconds dead_after{};
  std::string args{};
  Logger logger = [](LogLevel, std::string_view) {};
};

/// Makes the backend of one rank; blocks until all ranks have joined.
inline std::unique_ptr<Backend> make_backend(int rank, int size,
                                             const std::shared_ptr<Store>& store,
                                             const GroupSetup& setup,
                                             const std::string& name = "n") {
  return backend::nccl::make_nccl({.store = make_prefix_store(store, name + "-backend/"),
                                   .rank = rank,
                                   .size = size,
                                   .name = name,
                                   .args = setup.args,
                                   .device = {DeviceType::cuda, rank},
                                   .timeout = setup.timeout,
                                   .logger = setup.logger,
                                   .dead_after = setup.dead_after},
                                  setup.apis);
}

inline ProcessGroup make_group(int rank, int size, const std::shared_ptr<Store>& store,
                               const GroupSetup& setup, const std::string& name = "n") {
  GroupOptions options;
  options.store = store;
  options.rank = rank;
  options.size = size;
  options.timeout = setup.timeout;
  options.name = name;
  options.logger = [](LogLevel, std::string_view) {};
  return ProcessGroup::create(options, make_backend(rank, size, store, setup, name));
}

/// Runs `body` on threads that are ranks of groups from `make`, with streams of `device(rank)`.
inline void on_members(
    int size, const std::function<int(int rank)>& device,
    const std::function<ProcessGroup(int rank, const std::shared_ptr<Store>& store)>& make,
    const std::function<void(const Member& at)>& body) {
  const auto store = make_memory_store();
  on_threads(size, [&](int rank) {
    cuda().set_device(device(rank));
    cudaStream_t compute = nullptr;
    cudaStream_t other = nullptr;
    cuda().stream_create_with_flags(&compute, cudaStreamNonBlocking);
    cuda().stream_create_with_flags(&other, cudaStreamNonBlocking);
    const auto end = [&] {
      cuda().stream_destroy(compute);
      cuda().stream_destroy(other);
    };
    try {
      ProcessGroup group = make(rank, store);
      try {
        body({group, rank, compute, other});
        cuda().stream_synchronize(compute);
        cuda().stream_synchronize(other);
      } catch (...) {
        group.abort("a rank left the test");
        throw;
      }
    } catch (...) {
      end();
      throw;
    }
    end();
  });
}

/// Runs `body` on threads that are ranks of a new group.
inline void on_groups(int size, const std::function<void(const Member& at)>& body,
                      const GroupSetup& setup = {}) {
  on_members(
      size, [](int rank) { return rank; },
      [&](int rank, const std::shared_ptr<Store>& store) {
        return make_group(rank, size, store, setup);
      },
      body);
}

}  // namespace tutti::test::nccl_double
