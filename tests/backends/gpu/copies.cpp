#include "copies.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cuda/fold_kernels.hpp"
#include "cuda_functions.hpp"
#include "own_default_stream.hpp"
#include "support/scoped_variables.hpp"

namespace tutti::gpu {
namespace {

using backend::nccl::NcclApi;
namespace files = std::filesystem;

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Lets freed memory stay with the process. To give it back may wait for the device, where a kernel
/// may wait for the rank that gives it back.
void keep_memory(int device) {
  const auto& cuda = backend::cuda::cuda_api();
  const backend::cuda::DeviceScope scope(cuda, device);
  cudaMemPool_t pool = nullptr;
  check(cuda, load_cuda_functions().device_get_default_mem_pool(&pool, device),
        "cudaDeviceGetDefaultMemPool");
  std::uint64_t all = UINT64_MAX;
  check(cuda, cuda.mem_pool_set_attribute(pool, cudaMemPoolAttrReleaseThreshold, &all),
        "cudaMemPoolSetAttribute");
}

/// A communicator of one rank, at which NCCL reads its environment.
void use_once(const NcclApi& nccl) {
  const backend::cuda::DeviceScope scope(backend::cuda::cuda_api(), 0);
  ncclUniqueId id;
  check(nccl, nccl.get_unique_id(&id), "ncclGetUniqueId");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  ncclComm_t alone = nullptr;
  check(nccl, nccl.comm_init_rank_config(&alone, 1, id, 0, &config), "ncclCommInitRankConfig");
  check(nccl, nccl.comm_destroy(alone), "ncclCommDestroy");
}

}  // namespace

files::path file_of(const NcclApi& nccl) {
  Dl_info found{};
  const auto* address = reinterpret_cast<const void*>(nccl.get_version);
  if (::dladdr(address, &found) == 0 || found.dli_fname == nullptr)
    tutti::fail(Errc::unsupported, "the file of libnccl.so.2 is unknown: dladdr() has failed");
  return files::canonical(found.dli_fname);
}

Copy load_copy(const files::path& file, int number) {
  Copy copy;
  copy.bytes = files::file_size(file);
  const auto folder = files::temp_directory_path();
  if (const auto room = files::space(folder).available; room < copy.bytes)
    internal::failf(Errc::resource_exhausted,
                    "a copy of {} has {} MiB, and {} has room for {} MiB; set TMPDIR",
                    file.string(), copy.bytes >> 20, folder.string(), room >> 20);
  const auto path =
      folder / fmt::format("tutti-{}-{}-{}", ::getpid(), number, file.filename().string());
  try {
    copy.copy_s = seconds_of([&] { files::copy_file(file, path); });
    copy.load_s = seconds_of([&] { copy.api = backend::nccl::load_nccl(path.c_str()); });
  } catch (...) {
    std::error_code none;
    files::remove(path, none);
    throw;
  }
  files::remove(path);  // The process keeps what it has mapped.
  return copy;
}

void as_host(int number, const std::function<void()>& use) {
  constexpr const char* debug_file = "NCCL_DEBUG_FILE";
  test::ScopedVariables variables;
  variables.set("NCCL_HOSTID", fmt::format("tutti-{}", number).c_str());
  if (const char* file = std::getenv(debug_file))
    variables.set(debug_file, fmt::format("{}.copy{}", file, number).c_str());
  use();
}

backend::nccl::Apis apis_on_one_device(int rank, int size) {
  static std::mutex guard;
  static auto& tables = *new std::vector<const NcclApi*>;  // Of ranks that groups may outlive.
  if (rank < 0 || rank >= size || size > most_ranks)
    internal::failf(Errc::unsupported, "rank {} of {} ranks on one device, of at most {}", rank,
                    size, most_ranks);
  const std::lock_guard lock(guard);  // No rank goes on, and reads the environment, meanwhile.
  if (tables.empty()) keep_memory(0);
  for (int next = static_cast<int>(tables.size()); next < size; ++next) {
    const NcclApi* table = &backend::nccl::nccl_api();
    std::string how = "the installed library";
    if (next > 0) {
      const Copy copy = load_copy(file_of(*table), next);
      table = new NcclApi(copy.api);
      how = fmt::format("a copy of {} MiB, made in {:.2f} s, loaded in {:.2f} s", copy.bytes >> 20,
                        copy.copy_s, copy.load_s);
    }
    double used = 0;
    as_host(next, [&] { used = seconds_of([&] { use_once(*table); }); });
    fmt::print("rank {} uses {}; its first communicator took {:.2f} s\n", next, how, used);
    std::fflush(stdout);
    tables.push_back(table);
  }
  backend::nccl::Apis apis;
  apis.nccl = tables[static_cast<std::size_t>(rank)];
  apis.cuda = &with_own_default_stream(backend::cuda::cuda_api(), 0, rank);
  apis.fold_image = backend::cuda::fold_image();
  apis.driver = apis.fold_image.empty() ? nullptr : &backend::cuda::driver_api();
  return apis;
}

}  // namespace tutti::gpu
