#include "launch/pmix.hpp"

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "launch/mpi_in_process.hpp"
#include "values/fail.hpp"
#include "values/library.hpp"

namespace tutti::internal {
namespace {

// The types of the PMIx standard that its functions here take, in the layout that all versions of
// libpmix.so.2 have.

struct PmixProcess {
  std::array<char, 256> job{};
  std::uint32_t rank = 0;
};
static_assert(sizeof(PmixProcess) == 260 && offsetof(PmixProcess, rank) == 256);

struct PmixValue {
  std::uint16_t type = 0;
  union {
    char* text;
    std::array<std::byte, 24> room;  // The largest member of the union.
  };
};
static_assert(sizeof(PmixValue) == 32 && offsetof(PmixValue, text) == 8);

constexpr std::uint16_t pmix_string = 3;
constexpr int pmix_operation_succeeded = -157;
constexpr std::uint8_t pmix_global = 3;  // For ranks of this host and of the others.

/// The result of a fence, which the callback shares with a rank that may have given up.
struct Fence {
  std::mutex mutex{};
  std::condition_variable changed{};
  std::optional<int> status{};
};

void fence_done(int status, void* data) {
  const std::unique_ptr<std::shared_ptr<Fence>> fence(static_cast<std::shared_ptr<Fence>*>(data));
  const std::lock_guard lock((*fence)->mutex);
  (*fence)->status = status;
  (*fence)->changed.notify_all();
}

}  // namespace

struct PmixConnection::Api {
  int (*init)(PmixProcess*, void*, std::size_t) = nullptr;
  int (*finalize)(const void*, std::size_t) = nullptr;
  int (*put)(std::uint8_t, const char*, PmixValue*) = nullptr;
  int (*commit)() = nullptr;
  int (*fence)(const void*, std::size_t, const void*, std::size_t, void (*)(int, void*),
               void*) = nullptr;
  int (*get)(const PmixProcess*, const char*, const void*, std::size_t, PmixValue**) = nullptr;
  const char* (*text)(int) = nullptr;
};

const PmixConnection::Api& PmixConnection::api() {
  static const Api loaded = [] {
    // The launcher's own library, which is not always in the path of the linker.
    const char* prefix = std::getenv("PMIX_PREFIX");
    if (prefix == nullptr || *prefix == '\0') prefix = std::getenv("OPAL_PREFIX");
    const std::string folder = prefix == nullptr ? "" : prefix;
    const auto beside = folder + "/lib/libpmix.so.2";
    const auto below = folder + "/lib/openmpi/libpmix.so.2";
    std::vector<const char*> names{"libpmix.so.2"};
    if (!folder.empty()) names.insert(names.begin(), {beside.c_str(), below.c_str()});
    const Library library(names, instead);
    Api api;
    library.load(api.init, "PMIx_Init");
    library.load(api.finalize, "PMIx_Finalize");
    library.load(api.put, "PMIx_Put");
    library.load(api.commit, "PMIx_Commit");
    library.load(api.fence, "PMIx_Fence_nb");
    library.load(api.get, "PMIx_Get");
    library.load(api.text, "PMIx_Error_string");
    return api;
  }();
  return loaded;
}

std::string_view PmixConnection::given() noexcept {
  const char* text = std::getenv("PMIX_NAMESPACE");
  return text == nullptr ? std::string_view() : std::string_view(text);
}

PmixConnection::PmixConnection(int rank, Deadline deadline) : deadline_(deadline) {
  (void)mpi_is_initialized();  // It cannot be initialised after PMIx_Finalize.
  PmixProcess self;
  check(api().init(&self, nullptr, 0), "PMIx_Init");
  if (self.rank == static_cast<std::uint32_t>(rank)) return;
  api().finalize(nullptr, 0);
  failf(Errc::unsupported, "PMIx: this process is rank {} of job {}, but rank {} of the world; {}",
        self.rank, self.job.data(), rank, instead);
}

PmixConnection::~PmixConnection() {
  api().finalize(nullptr, 0);
}

std::size_t PmixConnection::most_letters() {
  return 4096;  // PMIx has no limit.
}

void PmixConnection::put(const std::string& key, const std::string& value) {
  auto text = value;  // PMIx_Put copies it.
  PmixValue published;
  published.type = pmix_string;
  published.text = text.data();
  check(api().put(pmix_global, key.c_str(), &published), "PMIx_Put");
  check(api().commit(), "PMIx_Commit");
}

void PmixConnection::wait_for_all() {
  const auto fence = std::make_shared<Fence>();
  auto shared = std::make_unique<std::shared_ptr<Fence>>(fence);
  const int begun = api().fence(nullptr, 0, nullptr, 0, fence_done, shared.get());
  if (begun == pmix_operation_succeeded) return;  // At once, without the callback.
  check(begun, "PMIx_Fence_nb");
  (void)shared.release();  // The callback has it.
  std::unique_lock lock(fence->mutex);
  const auto done = [&fence] { return fence->status.has_value(); };
  if (deadline_.is_none())
    fence->changed.wait(lock, done);
  else if (!fence->changed.wait_until(lock, deadline_.time(), done))
    fail(Errc::timeout, "PMIx: the fence has not ended in time: not all ranks have called init()");
  check(*fence->status, "the fence");
}

std::string PmixConnection::get(const std::string& key) {
  PmixProcess rank_0;
  const auto job = given();
  job.copy(rank_0.job.data(), rank_0.job.size() - 1);
  PmixValue* value = nullptr;
  check(api().get(&rank_0, key.c_str(), nullptr, 0, &value), "PMIx_Get");
  if (value == nullptr || value->type != pmix_string || value->text == nullptr)
    failf(Errc::unsupported, "PMIx: '{}' of rank 0 is no text", key);
  std::string text = value->text;
  std::free(value->text);  // As the standard's macro PMIX_VALUE_RELEASE does.
  std::free(value);
  return text;
}

void PmixConnection::check(int status, std::string_view call) const {
  if (status != 0)
    failf(Errc::backend, "PMIx: the launcher's library answered '{}' ({}) to {}; {}",
          api().text(status), status, call, instead);
}

}  // namespace tutti::internal
