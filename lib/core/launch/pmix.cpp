#include "launch/pmix.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "launch/mpi_in_process.hpp"
#include "values/fail.hpp"
#include "values/library.hpp"

namespace tutti::internal {

// The types of the PMIx standard that its functions here take, in the layout that all versions of
// libpmix.so.2 have. Those that PmixConnection::Api uses are not local to this file, because GCC 13
// and 14 crash in a unity build over a struct with pointers to functions of such types.

struct PmixProcess {
  std::array<char, 256> job{};
  std::uint32_t rank = 0;
};
static_assert(sizeof(PmixProcess) == 260 && offsetof(PmixProcess, rank) == 256);

struct PmixValue {
  std::uint16_t type = 0;
  union {
    char* text;
    bool flag;
    std::array<std::byte, 24> room;  // The largest member of the union.
  };
};
static_assert(sizeof(PmixValue) == 32 && offsetof(PmixValue, text) == 8);

struct PmixInfo {
  std::array<char, 512> key{};
  std::uint32_t flags = 0;
  PmixValue value{};
};
static_assert(sizeof(PmixInfo) == 552 && offsetof(PmixInfo, value) == 520);

namespace {

constexpr std::uint16_t pmix_bool = 1;
constexpr std::uint16_t pmix_string = 3;
constexpr int pmix_operation_succeeded = -157;
constexpr std::uint8_t pmix_global = 3;  // For ranks of this host and of the others.

/// The arguments of a fence, and its result.
struct Fence {
  /// The fence brings the values to every host. Otherwise a host keeps the first value that it has
  /// asked for, which the next program of the same ranks would get (Slurm's plugin, PMIx 4.2).
  PmixInfo collect{};
  std::promise<int> status{};

  Fence() {
    std::string_view("pmix.collect").copy(collect.key.data(), collect.key.size() - 1);
    collect.value.type = pmix_bool;
    collect.value.flag = true;
  }
};

void fence_done(int status, void* data) {
  const std::unique_ptr<Fence> fence(static_cast<Fence*>(data));
  fence->status.set_value(status);
}

template <typename Result>
bool ends_in_time(const std::future<Result>& result, Deadline limit) {
  if (!limit.is_none()) return result.wait_until(limit.time()) == std::future_status::ready;
  result.wait();
  return true;
}

/// Runs `call` on a separate thread, because the calls that wait for the launcher have no limit:
/// PMIX_TIMEOUT is the launcher's to keep, and PMIx_Init and PMIx_Commit do not take it. A call
/// that does not end in time keeps its thread, so it must own what it uses.
template <typename Call>
auto call_in_time(Deadline limit, std::string_view name, Call call) {
  std::packaged_task<decltype(call())()> task(std::move(call));
  auto result = task.get_future();
  try {
    std::thread(std::move(task)).detach();
  } catch (const std::system_error& error) {
    failf(Errc::resource_exhausted, "PMIx: cannot start a thread for {}: {}", name, error.what());
  }
  if (!ends_in_time(result, limit))
    failf(Errc::timeout, "PMIx: the launcher has not answered {} in time", name);
  return result.get();
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
  const auto [status, self] = call_in_time(deadline, "PMIx_Init", [init = api().init] {
    PmixProcess process;
    const int result = init(&process, nullptr, 0);
    return std::pair(result, process);
  });
  check(status, "PMIx_Init");
  if (self.rank == static_cast<std::uint32_t>(rank)) return;
  api().finalize(nullptr, 0);
  failf(Errc::unsupported, "PMIx: this process is rank {} of job {}, but rank {} of the world; {}",
        self.rank, self.job.data(), rank, instead);
}

PmixConnection::~PmixConnection() {
  if (!in_call_) api().finalize(nullptr, 0);  // Has a limit itself.
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
  in_call_ = true;
  const int committed = call_in_time(deadline_, "PMIx_Commit", api().commit);
  in_call_ = false;
  check(committed, "PMIx_Commit");
}

void PmixConnection::wait_for_all() {
  auto fence = std::make_unique<Fence>();
  auto status = fence->status.get_future();
  const int begun = api().fence(nullptr, 0, &fence->collect, 1, fence_done, fence.get());
  if (begun == pmix_operation_succeeded) return;  // At once, without the callback.
  check(begun, "PMIx_Fence_nb");
  (void)fence.release();  // The callback has it.
  if (!ends_in_time(status, deadline_))
    fail(Errc::timeout, "PMIx: the fence has not ended in time: not all ranks have called init()");
  check(status.get(), "the fence");
}

std::string PmixConnection::get(const std::string& key) {
  PmixProcess rank_0;
  const auto job = given();
  job.copy(rank_0.job.data(), rank_0.job.size() - 1);
  in_call_ = true;
  const auto [status, value] =
      call_in_time(deadline_, "PMIx_Get", [get = api().get, rank_0, key]() {
        PmixValue* found = nullptr;
        const int result = get(&rank_0, key.c_str(), nullptr, 0, &found);
        return std::pair(result, found);
      });
  in_call_ = false;
  check(status, "PMIx_Get");
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
