#include "launch/mpi_in_process.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "values/fail.hpp"

namespace tutti::internal {
namespace {

/// Looks for a function in the libraries of the program and in MPI libraries, which a module of
/// Python may have loaded for itself.
void* find_in_mpi(const char* name) {
  if (void* found = ::dlsym(RTLD_DEFAULT, name)) return found;
  std::vector<std::string> libraries;
  const auto visit = [](dl_phdr_info* object, std::size_t, void* data) {
    const std::string_view path = object->dlpi_name;
    if (path.substr(path.rfind('/') + 1).starts_with("libmpi"))
      static_cast<std::vector<std::string>*>(data)->emplace_back(path);
    return 0;
  };
  // It holds a lock of the linker, under which dlopen could wait for another thread's dlopen.
  ::dl_iterate_phdr(visit, &libraries);
  for (const auto& path : libraries) {
    void* library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    void* found = ::dlsym(library, name);
    ::dlclose(library);
    if (found != nullptr) return found;
  }
  return nullptr;
}

}  // namespace

bool mpi_is_initialized() {
  using Query = int (*)(int*);
  const auto initialized = reinterpret_cast<Query>(find_in_mpi("MPI_Initialized"));
  const auto finalized = reinterpret_cast<Query>(find_in_mpi("MPI_Finalized"));
  if (initialized == nullptr || finalized == nullptr) return false;
  int begun = 0;
  int ended = 0;
  initialized(&begun);
  finalized(&ended);
  if (begun == 0 || ended != 0)
    failf(Errc::unsupported,
          "this program uses MPI, which owns the launcher's key-value space and {}; call "
          "tutti::init() between MPI_Init and MPI_Finalize, or set TUTTI_STORE, or MASTER_ADDR and "
          "MASTER_PORT (the host of rank 0)",
          begun == 0 ? "has not been initialised" : "has closed it");
  return true;
}

}  // namespace tutti::internal
