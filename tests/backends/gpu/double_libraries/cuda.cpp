// libcuda.so.1 over the double in libcudart.so.13.

#include <dlfcn.h>

#include "shared_double.hpp"
#include "trampolines.hpp"

#define TUTTI_DEFINE(field, function) TUTTI_TRAMPOLINE(function)
TUTTI_CUDA_DRIVER_FUNCTIONS(TUTTI_DEFINE)

namespace {

[[gnu::constructor]] void begin() {
  void* cudart = ::dlopen("libcudart.so.13", RTLD_NOW);
  const auto driver =
      reinterpret_cast<decltype(&tutti_double_driver)>(::dlsym(cudart, "tutti_double_driver"));
  const auto& table = *driver();
#define TUTTI_FILL(field, function) TUTTI_FILL_SLOT(function, table.field)
  TUTTI_CUDA_DRIVER_FUNCTIONS(TUTTI_FILL)
#undef TUTTI_FILL
}

}  // namespace
