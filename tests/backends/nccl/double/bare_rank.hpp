#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backends/nccl/double/double.hpp"
#include "support/ranks.hpp"

// The common parts of tests that call the tables of the double directly.

namespace tutti::test::nccl_double {

inline const backend::nccl::NcclApi& nccl() {
  return *apis().nccl;
}
inline const backend::nccl::CudaApi& cuda() {
  return *apis().cuda;
}

/// One rank that uses the libraries correctly: its device, a communicator and a stream.
class BareRank {
 public:
  static constexpr std::size_t count = 100;

  /// Without a communicator.
  BareRank(int my_rank, int ranks) : rank(my_rank), size(ranks) {
    EXPECT_EQ(cuda().set_device(rank), cudaSuccess);
    EXPECT_EQ(cuda().stream_create_with_flags(&stream, cudaStreamNonBlocking), cudaSuccess);
  }
  BareRank(int my_rank, int ranks, const ncclUniqueId& id) : BareRank(my_rank, ranks) {
    comm = make_comm(id);
    if (comm != nullptr) settle(comm);
  }
  BareRank(const BareRank&) = delete;
  BareRank& operator=(const BareRank&) = delete;
  ~BareRank() {
    if (comm != nullptr) nccl().comm_abort(comm);
    for (float* data : blocks_) cuda().free_async(data, stream);
    cuda().stream_synchronize(stream);
    cuda().stream_destroy(stream);
    cuda().get_last_error();
  }

  /// Not ready yet.
  ncclComm_t make_comm(const ncclUniqueId& id) const {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t made = nullptr;
    EXPECT_EQ(nccl().comm_init_rank_config(&made, size, id, rank, &config), ncclInProgress);
    return made;
  }
  /// Polls until the communicator is not in progress any more.
  static ncclResult_t settle(ncclComm_t which) {
    ncclResult_t state = ncclInProgress;
    const auto limit = std::chrono::steady_clock::now() + 10s;
    while (state == ncclInProgress && std::chrono::steady_clock::now() < limit) {
      EXPECT_EQ(nccl().comm_get_async_error(which, &state), ncclSuccess);
      std::this_thread::yield();
    }
    return state;
  }
  ncclResult_t settle() const { return settle(comm); }

  /// An array on the device, complete when it is returned.
  float* make(float value, std::size_t n = count) {
    void* data = nullptr;
    EXPECT_EQ(cuda().malloc_async(&data, n * sizeof(float), stream), cudaSuccess);
    auto* array = static_cast<float*>(data);
    blocks_.push_back(array);
    const std::vector<float> values(n, value);
    cuda().memcpy_async(array, values.data(), n * sizeof(float), cudaMemcpyHostToDevice, stream);
    EXPECT_EQ(cuda().stream_synchronize(stream), cudaSuccess);
    return array;
  }
  std::vector<float> read(const float* data, std::size_t n = count) const {
    std::vector<float> values(n);
    cuda().memcpy_async(values.data(), data, n * sizeof(float), cudaMemcpyDeviceToHost, stream);
    EXPECT_EQ(cuda().stream_synchronize(stream), cudaSuccess);
    return values;
  }
  /// The caller frees it.
  void forget(float* data) { std::erase(blocks_, data); }

  ncclResult_t all_reduce(const float* in, float* out, std::size_t n = count) const {
    return nccl().all_reduce(in, out, n, ncclFloat32, ncclSum, comm, stream);
  }

  int rank;
  int size;
  cudaStream_t stream = nullptr;
  ncclComm_t comm = nullptr;

 private:
  std::vector<float*> blocks_;
};

/// Resets the double between tests.
class Double : public testing::Test {
 protected:
  Double() {
    clear_faults();
    take_violations();
  }
  void TearDown() override {
    clear_faults();
    check_nothing_is_left();
    for (const std::string& violation : take_violations()) ADD_FAILURE() << violation;
  }

  /// Runs `body` on threads that are ranks, each with a BareRank.
  static void on_bare_ranks(int size, const std::function<void(BareRank& at)>& body) {
    ncclUniqueId id;
    ASSERT_EQ(nccl().get_unique_id(&id), ncclSuccess);
    on_threads(size, [&](int rank) {
      BareRank at(rank, size, id);
      body(at);
    });
  }
  static ncclUniqueId new_id() {
    ncclUniqueId id;
    EXPECT_EQ(nccl().get_unique_id(&id), ncclSuccess);
    return id;
  }

  /// At least one rule was broken, and each of the reports has one of `texts`.
  static void expect_violation(const std::vector<std::string>& texts) {
    const auto found = take_violations();
    EXPECT_FALSE(found.empty()) << "the double did not notice";
    for (const std::string& violation : found) {
      bool known = false;
      for (const std::string& text : texts)
        known = known || violation.find(text) != std::string::npos;
      EXPECT_TRUE(known) << "another violation: " << violation;
    }
  }
};

}  // namespace tutti::test::nccl_double
