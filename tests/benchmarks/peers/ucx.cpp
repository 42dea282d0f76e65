// UCX's own calls as a contestant of contest.py: two ranks, tagged messages, no timeouts and no
// failures. An all_reduce moves the bytes of two halves. usage: peer_ucx DIRECTORY 2 RANK

#include <ucp/api/ucp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "contestant.hpp"

namespace tutti::peers {
namespace {

void require(ucs_status_t status) {
  if (status != UCS_OK) throw std::runtime_error(ucs_status_string(status));
}

/// A worker and an endpoint to the other rank.
class Peer {
 public:
  Peer(const std::string& directory, int rank) {
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
    parameters.features = UCP_FEATURE_TAG;
    ucp_config_t* configuration = nullptr;
    require(ucp_config_read(nullptr, nullptr, &configuration));
    const auto made = ucp_init(&parameters, configuration, &context_);
    ucp_config_release(configuration);
    require(made);
    ucp_worker_params_t worker{};
    require(ucp_worker_create(context_, &worker, &worker_));
    publish(directory + "/ucx" + std::to_string(rank));
    const auto address = read(directory + "/ucx" + std::to_string(1 - rank));
    ucp_ep_params_t endpoint{};
    endpoint.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    endpoint.address = reinterpret_cast<const ucp_address_t*>(address.data());
    require(ucp_ep_create(worker_, &endpoint, &endpoint_));
  }
  ~Peer() {
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void send(std::span<const float> data) { wait(start_send(data)); }
  void recv(std::span<float> data) { wait(start_recv(data)); }
  void exchange(std::span<const float> out, std::span<float> in) {
    void* received = start_recv(in);
    void* sent = start_send(out);
    wait(received);
    wait(sent);
  }

 private:
  void publish(const std::string& path) {
    ucp_address_t* address = nullptr;
    std::size_t length = 0;
    require(ucp_worker_get_address(worker_, &address, &length));
    std::ofstream(path + ".new", std::ios::binary)
        .write(reinterpret_cast<const char*>(address), static_cast<std::streamsize>(length));
    std::filesystem::rename(path + ".new", path);
    ucp_worker_release_address(worker_, address);
  }
  static std::vector<char> read(const std::string& path) {
    while (!std::filesystem::exists(path))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  void* start_send(std::span<const float> data) {
    const ucp_request_param_t parameters{};
    return ucp_tag_send_nbx(endpoint_, data.data(), data.size_bytes(), 1, &parameters);
  }
  void* start_recv(std::span<float> data) {
    const ucp_request_param_t parameters{};
    return ucp_tag_recv_nbx(worker_, data.data(), data.size_bytes(), 1, ~std::uint64_t{0},
                            &parameters);
  }
  void wait(void* request) {
    if (UCS_PTR_IS_ERR(request)) require(UCS_PTR_STATUS(request));
    if (request == nullptr) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker_);
    const auto status = ucp_request_check_status(request);
    ucp_request_free(request);
    require(status);
  }

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
};

void add(std::span<float> to, std::span<const float> values) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += values[i];
}

/// Up to `most` bytes whole arrays; above, each rank reduces a half and sends the sums.
Call make_all_reduce(Peer& peer, int rank, std::span<float> data) {
  constexpr std::size_t most = 32 << 10;
  const auto half = data.size() / 2;
  const bool whole = data.size_bytes() <= most;
  const auto own = whole ? data : rank == 0 ? data.first(half) : data.subspan(half);
  const auto other = whole ? data : rank == 0 ? data.subspan(half) : data.first(half);
  return [=, &peer, scratch = std::vector<float>(own.size())](int) mutable {
    peer.exchange(other, scratch);
    add(own, scratch);
    if (!whole) peer.exchange(own, other);
  };
}

Call make(Peer& peer, int rank, const Request& request, Arrays arrays) {
  const auto& operation = request.operation;
  const auto in = arrays.in;
  const auto out = arrays.out;
  if (operation == "barrier") return [&peer](int) { peer.exchange({}, {}); };
  if (operation == "all_reduce") return make_all_reduce(peer, rank, in);
  if (operation == "broadcast")
    return [=, &peer](int call) { rank == call % 2 ? peer.send(in) : peer.recv(in); };
  if (operation == "all_gather" || operation == "all_gather_rows") {
    const auto first = request.counts[0];
    const auto own = rank == 0 ? out.first(first) : out.subspan(first);
    const auto other = rank == 0 ? out.subspan(first) : out.first(first);
    return [=, &peer](int) {
      std::ranges::copy(in, own.begin());
      peer.exchange(in, other);
    };
  }
  return {};
}

}  // namespace
}  // namespace tutti::peers

int main(int count, char** words) try {
  using namespace tutti::peers;
  if (count != 4) return 2;
  if (std::string(words[2]) != "2") throw std::runtime_error("two ranks only");
  const int rank = std::stoi(words[3]);
  Peer peer(words[1], rank);
  return serve(words[1], {.rank = rank,
                          .size = 2,
                          .version = ucp_get_version_string(),
                          .make = [&](const auto& request, auto arrays) {
                            return make(peer, rank, request, arrays);
                          }});
} catch (const std::exception& error) {
  std::fprintf(stderr, "peer_ucx: %s\n", error.what());
  return 1;
}
