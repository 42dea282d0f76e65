// libnccl.so.2 over the double in libcudart.so.13. A copy of this file is another copy of NCCL.

#include <dlfcn.h>

#include "shared_double.hpp"
#include "trampolines.hpp"

#define TUTTI_DEFINE(field, function) TUTTI_TRAMPOLINE(function)
#define TUTTI_DEFINE_OPTIONAL(field, function, parameters) TUTTI_TRAMPOLINE(function)
TUTTI_NCCL_FUNCTIONS(TUTTI_DEFINE)
TUTTI_NCCL_OPTIONAL_FUNCTIONS(TUTTI_DEFINE_OPTIONAL)

namespace {

[[gnu::constructor]] void begin() {
  void* cudart = ::dlopen("libcudart.so.13", RTLD_NOW);
  const auto next = reinterpret_cast<decltype(&tutti_double_next_nccl)>(
      ::dlsym(cudart, "tutti_double_next_nccl"));
  const auto& table = *next();
#define TUTTI_FILL(field, function) TUTTI_FILL_SLOT(function, table.field)
  TUTTI_NCCL_FUNCTIONS(TUTTI_FILL)
#undef TUTTI_FILL
#define TUTTI_FILL(field, function, parameters) TUTTI_FILL_SLOT(function, table.field)
  TUTTI_NCCL_OPTIONAL_FUNCTIONS(TUTTI_FILL)
#undef TUTTI_FILL
}

}  // namespace
