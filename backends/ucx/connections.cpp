// The objects of UCX that a worker makes and destroys: its context, its worker and its endpoints.

#include <sched.h>

#include <chrono>
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "worker.hpp"

namespace tutti::backend::ucx {
namespace {

/// UCX's configuration: what the user sets in the environment, and this backend's defaults.
class Config {
 public:
  /// @throws Error backend with UCX's reason.
  Config(const UcxApi& api, const std::string& transports) : Config(api) {
    set("TLS", transports.c_str());
    if (std::getenv("UCX_KEEPALIVE_INTERVAL") == nullptr) set("KEEPALIVE_INTERVAL", "1s");
  }
  ~Config() { api_.config_release(config_); }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;
  operator const ucp_config_t*() const noexcept { return config_; }

 private:
  explicit Config(const UcxApi& api) : api_(api) {
    check(api, api.config_read(nullptr, nullptr, &config_), "ucp_config_read");
  }
  void set(const char* option, const char* value) {
    check(api_, api_.config_modify(config_, option, value),
          fmt::format("setting UCX_{} to {}", option, value));
  }

  const UcxApi& api_;
  ucp_config_t* config_ = nullptr;
};

}  // namespace

Worker::Worker(const UcxApi& api, int rank, int size, const Transports& transports, Logger logger,
               std::function<void(int peer)> ended)
    : mesh::Links(std::move(ended)),
      api_(api),
      rank_(rank),
      report_ends_(transports.report_ends),
      logger_(std::move(logger)),
      collector_([this](LogLevel level, std::string_view text) {
        // UCX has a line for each message that was not received.
        if (is_closing() && !lines_.empty()) {
          ++lines_left_out_;
          return;
        }
        try {
          lines_.emplace_back(level, text);
          has_lines_ = true;
        } catch (const std::bad_alloc&) {  // Called by UCX, which is C.
        }
      }),
      endpoints_(static_cast<std::size_t>(size)) {
  ends_.reserve(endpoints_.size());
  const LogTo log(logger_);
  const Config config(api, transports.list);
  ucp_params_t wanted{};
  wanted.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS |
                      UCP_PARAM_FIELD_TAG_SENDER_MASK;
  wanted.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  wanted.estimated_num_eps = static_cast<std::size_t>(size);
  wanted.tag_sender_mask = ~hash_mask;
  check(api, api.init_version(UCP_API_MAJOR, UCP_API_MINOR, &wanted, config, &context_),
        "ucp_init");
  ucp_worker_params_t of_worker{};
  of_worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  of_worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  of_worker.events = UCP_WAKEUP_TAG_SEND | UCP_WAKEUP_TAG_RECV;
  auto status = api.worker_create(context_, &of_worker, &worker_);
  if (status == UCS_OK) {
    status = api.worker_get_efd(worker_, &descriptor_);
    if (status != UCS_OK) api.worker_destroy(worker_);
  }
  if (status != UCS_OK) api.cleanup(context_);
  check(api, status, "ucp_worker_create");
}

Worker::~Worker() {
  close();
}

std::string Worker::address() const {
  ucp_address_t* data = nullptr;
  std::size_t bytes = 0;
  check(api_, api_.worker_get_address(worker_, &data, &bytes), "ucp_worker_get_address");
  std::string text(reinterpret_cast<const char*>(data), bytes);
  api_.worker_release_address(worker_, data);
  return text;
}

bool Worker::connect(int peer, std::string_view address) {
  Lock lock(*this);
  const LogTo log(collector_);
  auto& endpoint = endpoints_[static_cast<std::size_t>(peer)];
  endpoint.worker = this;
  endpoint.peer = peer;
  ucp_ep_params_t wanted{};
  wanted.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  wanted.address = reinterpret_cast<const ucp_address_t*>(address.data());
  wanted.err_mode = report_ends_ ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
  wanted.err_handler = {.cb = failed, .arg = &endpoint};
  const auto status = api_.ep_create(worker_, &wanted, &endpoint.handle);
  if (status != UCS_OK) endpoint.handle = nullptr;
  if (status == UCS_ERR_UNREACHABLE) return false;
  check(api_, status, fmt::format("connecting to rank {}", peer));
  return true;
}

void Worker::failed(void* endpoint, ucp_ep_h, ucs_status_t) {
  auto& e = *static_cast<Endpoint*>(endpoint);
  e.worker->lose(e);
}

void Worker::lose(Endpoint& endpoint) {
  if (std::exchange(endpoint.lost, true)) return;
  report_end(endpoint.peer);
}

void Worker::drive(ucs_status_ptr_t handle, Deadline limit) {
  if (!UCS_PTR_IS_PTR(handle)) return;
  while (api_.request_check_status(handle) == UCS_INPROGRESS && !limit.expired())
    if (api_.worker_progress(worker_) == 0) ::sched_yield();
  api_.request_free(handle);
}

void Worker::flush(Deadline limit) {
  Lock lock(*this);
  if (is_closing()) return;
  const LogTo log(collector_);
  const ucp_request_param_t none{};
  ends_.clear();
  for (const auto& endpoint : endpoints_)
    if (endpoint.handle != nullptr && !endpoint.lost)
      ends_.push_back(api_.ep_flush(endpoint.handle, &none));
  for (auto* const handle : ends_) drive(handle, limit);
}

void Worker::close_endpoints() {
  static constexpr ucp_tag_t of_all = 0;  // A withdrawal of all messages.
  ucp_request_param_t force{};
  force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  force.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucp_request_param_t none{};
  ends_.clear();
  for (auto& endpoint : endpoints_) {
    if (endpoint.handle == nullptr) continue;
    if (report_ends_)
      ends_.push_back(api_.ep_close(std::exchange(endpoint.handle, nullptr), &force));
    else if (!processes_.empty() && !endpoint.lost)  // Destroying the worker closes it.
      ends_.push_back(
          api_.tag_send(endpoint.handle, &of_all, sizeof of_all, withdrawal_of(rank_), &none));
  }
  const auto limit =
      Deadline::after(std::chrono::milliseconds(20));  // Destroying the worker ends the rest.
  for (auto* const handle : ends_) drive(handle, limit);
}

void Worker::close() noexcept {
  Lock lock(*this);
  if (!stop(lock)) return;
  const LogTo log(collector_);
  for (auto* request = in_flight_; request != nullptr;) {
    auto* const next = request->after;
    if (!request->sends) api_.request_cancel(worker_, request->handle);
    request = next;
  }
  close_endpoints();
  api_.worker_destroy(std::exchange(worker_, nullptr));
  api_.cleanup(context_);
  // UCX has forgotten requests that it could not end.
  for (; in_flight_ != nullptr; in_flight_ = in_flight_->after) {
    in_flight_->status = UCS_ERR_CANCELED;
    in_flight_->failed = in_flight_->ended = true;
  }
  set_closed();
}

}  // namespace tutti::backend::ucx
