#include <tutti/store/store.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <tutti/store/store_server.hpp>

#include "c/values.hpp"
#include "c/works.hpp"

using namespace tutti::c_abi;  // NOLINT(google-build-using-namespace)

struct tutti_bytes {
  tutti::Bytes value{};
};

struct tutti_store_server {
  tutti::StoreServer server;
};

namespace tutti::c_abi {
namespace {

/// A store of function pointers.
class FunctionStore final : public Store {
 public:
  explicit FunctionStore(const tutti_store_functions& functions) : f_(functions) {}
  FunctionStore(const FunctionStore&) = delete;
  FunctionStore& operator=(const FunctionStore&) = delete;
  ~FunctionStore() override {
    if (f_.destroy != nullptr) f_.destroy(f_.context);
  }

  void set(std::string_view key, std::span<const std::byte> value) override {
    call_back("set of tutti_store_functions", [&] {
      return f_.set(f_.context, std::string(key).c_str(), value.data(), value.size());
    });
  }
  std::optional<Bytes> try_get(std::string_view key) override { return wait_for(key, 0); }
  Bytes get(std::string_view key, Deadline deadline) override {
    const bool unlimited = !deadline.is_set() || deadline.is_none();
    auto value = wait_for(key, unlimited ? -1 : deadline.remaining().count());
    if (!value) fail(Errc::timeout, fmt::format("store: no key '{}' before the deadline", key));
    return std::move(*value);
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    std::int64_t sum = 0;
    call_back("add of tutti_store_functions",
              [&] { return f_.add(f_.context, std::string(key).c_str(), delta, &sum); });
    return sum;
  }
  Bytes compare_set(std::string_view key, std::span<const std::byte> expected,
                    std::span<const std::byte> desired) override {
    tutti_bytes value;
    call_back("compare_set of tutti_store_functions", [&] {
      return f_.compare_set(f_.context, std::string(key).c_str(), expected.data(), expected.size(),
                            desired.data(), desired.size(), &value);
    });
    return std::move(value.value);
  }
  bool erase(std::string_view key) override {
    std::int32_t existed = 0;
    call_back("erase of tutti_store_functions",
              [&] { return f_.erase(f_.context, std::string(key).c_str(), &existed); });
    return existed != 0;
  }
  std::string local_address() const override { return std::string(text(f_.local_address)); }
  bool in_process() const override { return f_.in_process != 0; }

 private:
  std::optional<Bytes> wait_for(std::string_view key, std::int64_t timeout_ns) {
    tutti_bytes value;
    bool found = true;
    call_back("get of tutti_store_functions", [&] {
      const auto status = f_.get(f_.context, std::string(key).c_str(), timeout_ns, &value);
      found = status != TUTTI_TIMEOUT;
      return found ? status : TUTTI_OK;
    });
    return found ? std::optional(std::move(value.value)) : std::nullopt;
  }

  tutti_store_functions f_;
};

/// Returns the value of a key. @throws Error timeout.
Bytes value_of(Store& store, const char* key, std::int64_t timeout_ns) {
  if (timeout_ns != 0) return store.get(text(key), deadline_after(timeout_ns));
  if (auto value = store.try_get(text(key))) return std::move(*value);
  fail(Errc::timeout, fmt::format("store: there is no key '{}'", text(key)));
}

}  // namespace
}  // namespace tutti::c_abi

extern "C" {

tutti_status tutti_bytes_set(tutti_bytes* to, const void* data, size_t bytes) {
  return guard([&] {
    const auto from = bytes_of(data, bytes);
    deref(to, "the value").value.assign(from.begin(), from.end());
  });
}

tutti_status tutti_store_create(const tutti_store_functions* functions, tutti_store** store) {
  return guard([&] {
    auto& out = handle(store);
    const auto f = read(&deref(functions, "the functions"));
    if (f.set == nullptr || f.get == nullptr || f.add == nullptr || f.compare_set == nullptr ||
        f.erase == nullptr)
      fail_null("a function of tutti_store_functions");
    out = new tutti_store{std::make_shared<FunctionStore>(f)};
  });
}

tutti_status tutti_store_open(const char* address, int64_t timeout_ns, tutti_store** store) {
  return guard([&] {
    auto& out = handle(store);
    out = new tutti_store{
        timeout_ns == 0 ? tutti::open_store(text(address))
                        : tutti::open_store(text(address), std::chrono::nanoseconds(timeout_ns))};
  });
}

tutti_status tutti_store_prefix(tutti_store* base, const char* prefix, tutti_store** store) {
  return guard([&] {
    auto& out = handle(store);
    out = new tutti_store{
        tutti::make_prefix_store(deref(base, "the store").store, std::string(text(prefix)))};
  });
}

tutti_status tutti_store_serve(const char* host, int32_t* port, tutti_store_server** server) {
  return guard([&] {
    auto& out = handle(server);
    auto& at = deref(port, "an out-parameter");
    out = new tutti_store_server{tutti::StoreServer({.host = std::string(text(host)), .port = at})};
    at = out->server.port();
  });
}

tutti_status tutti_store_server_free(tutti_store_server* server) {
  delete server;
  return TUTTI_OK;
}

tutti_status tutti_store_set(tutti_store* store, const char* key, const void* value, size_t bytes) {
  return guard([&] { of(store).set(text(key), bytes_of(value, bytes)); });
}

tutti_status tutti_store_get(tutti_store* store, const char* key, int64_t timeout_ns,
                             tutti_result** value) {
  return give_result(value, [&](Content& to) {
    const auto found = value_of(of(store), key, timeout_ns);
    to.add(found.data(), found.size());
  });
}

tutti_status tutti_store_wait(tutti_store* store, const char* key, int64_t timeout_ns) {
  return guard([&] { (void)value_of(of(store), key, timeout_ns); });
}

tutti_status tutti_store_add(tutti_store* store, const char* key, int64_t delta, int64_t* sum) {
  return guard([&] { deref(sum, "an out-parameter") = of(store).add(text(key), delta); });
}

tutti_status tutti_store_compare_set(tutti_store* store, const char* key, const void* expected,
                                     size_t expected_bytes, const void* desired,
                                     size_t desired_bytes, tutti_result** value) {
  return give_result(value, [&](Content& to) {
    const auto now = of(store).compare_set(text(key), bytes_of(expected, expected_bytes),
                                           bytes_of(desired, desired_bytes));
    to.add(now.data(), now.size());
  });
}

tutti_status tutti_store_erase(tutti_store* store, const char* key, int32_t* existed) {
  return guard([&] {
    const bool was_there = of(store).erase(text(key));
    if (existed != nullptr) *existed = was_there ? 1 : 0;
  });
}

tutti_status tutti_store_free(tutti_store* store) {
  delete store;
  return TUTTI_OK;
}

}  // extern "C"
