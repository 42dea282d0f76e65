#include "launch/mpi_in_process.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <string_view>
#include <utility>

#include "values/fail.hpp"

namespace tutti::internal {
namespace {

/// Looks for a function in the libraries of the program and in MPI libraries, which a module of
/// Python may have loaded for itself.
void* find_in_mpi(const char* name) {
  if (void* found = ::dlsym(RTLD_DEFAULT, name)) return found;
  std::pair<const char*, void*> search{name, nullptr};
  const auto visit = [](dl_phdr_info* object, std::size_t, void* data) {
    auto& [wanted, found] = *static_cast<std::pair<const char*, void*>*>(data);
    const std::string_view path = object->dlpi_name;
    if (!path.substr(path.rfind('/') + 1).starts_with("libmpi")) return 0;
    void* library = ::dlopen(object->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return 0;
    found = ::dlsym(library, wanted);
    ::dlclose(library);
    return found == nullptr ? 0 : 1;
  };
  ::dl_iterate_phdr(visit, &search);
  return search.second;
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
