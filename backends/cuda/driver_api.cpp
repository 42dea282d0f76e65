#include "driver_api.hpp"

#include "library.hpp"

namespace tutti::backend::cuda {
namespace {

DriverApi load() {
  const Library library({"libcuda.so.1"}, "install an NVIDIA driver for CUDA 12.0 or newer");
  DriverApi api;
#define TUTTI_LOAD(field, function) library.load(api.field, #function);
  TUTTI_CUDA_DRIVER_FUNCTIONS(TUTTI_LOAD)
#undef TUTTI_LOAD
  return api;
}

}  // namespace

const DriverApi& driver_api() {
  static const DriverApi api = load();
  return api;
}

}  // namespace tutti::backend::cuda
