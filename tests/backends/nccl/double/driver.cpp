// The CUDA driver of the double: it loads one image, its own, and runs the host's build of the
// kernels in the order of the streams.

#include <cstring>

#include <fmt/format.h>

#include "backends/nccl/double/double.hpp"
#include "backends/nccl/double/machine.hpp"
#include "backends/nccl/double/tables.hpp"
#include "cuda/fold.hpp"

namespace tutti::test::nccl_double {

namespace {

using backend::cuda::Fold;

constexpr std::array<std::byte, 16> image{std::byte{0xD0}, std::byte{0xB1}, std::byte{0xE5}};

/// The limits of a device.
constexpr unsigned int most_threads = 1024;
constexpr unsigned int most_blocks = 0x7fffffff;

enum class HandleFunction : char { fold, put };
struct LoadedLibrary {
  std::array<HandleFunction, 2> kernels{HandleFunction::fold, HandleFunction::put};
};

LoadedLibrary& the_library() {
  static LoadedLibrary only;
  return only;
}

CUresult library_load_data(CUlibrary* library, const void* code, CUjit_option*, void**,
                           unsigned int, CUlibraryOption*, void**, unsigned int) {
  Machine& here = machine();
  const Lock lock(here.mutex);
  ++here.calls["cuLibraryLoadData"];
  if (code != image.data()) return CUDA_ERROR_INVALID_IMAGE;
  *library = reinterpret_cast<CUlibrary>(&the_library());
  return CUDA_SUCCESS;
}

CUresult library_get_kernel(CUkernel* kernel, CUlibrary library, const char* name) {
  const Lock lock(machine().mutex);
  auto& loaded = the_library();
  if (library != reinterpret_cast<CUlibrary>(&loaded)) return CUDA_ERROR_INVALID_HANDLE;
  const std::string wanted(name);
  if (wanted != "tutti_fold" && wanted != "tutti_put") return CUDA_ERROR_NOT_FOUND;
  *kernel = reinterpret_cast<CUkernel>(&loaded.kernels[wanted == "tutti_fold" ? 0 : 1]);
  return CUDA_SUCCESS;
}

/// Parameters are copied when a kernel is launched.
template <typename T>
T parameter(void** parameters, int index) {
  T value;
  std::memcpy(&value, parameters[index], sizeof value);
  return value;
}

std::vector<Touch> touches_of(const Fold& fold) {
  std::vector<Touch> touches;
  if (fold.bytes == 0) return touches;
  const bool all = fold.form == Fold::Form::all;
  for (int slot = 0; slot < fold.size; ++slot)
    touches.push_back({fold.slots + static_cast<std::uint64_t>(slot) * fold.slot, fold.bytes,
                       !all || slot == fold.into});
  if (fold.kind == ReduceOp::Kind::premul_sum)
    touches.push_back({fold.scales, static_cast<std::size_t>(fold.size) * sizeof(double), false});
  return touches;
}

std::function<void()> run_of(const DeviceMemory& memory, Fold fold, std::uint64_t threads) {
  if (fold.bytes == 0) return [] {};
  fold.slots = memory.bytes(fold.slots);
  if (fold.scales != nullptr)
    fold.scales = reinterpret_cast<const double*>(memory.bytes(fold.scales));
  return [fold, threads] {
    for (std::uint64_t thread = 0; thread < threads; ++thread)
      backend::cuda::run_fold(fold, thread, threads);
  };
}

CUresult launch_kernel(CUfunction kernel, unsigned int grid_x, unsigned int grid_y,
                       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                       unsigned int block_z, unsigned int shared_bytes, CUstream handle,
                       void** parameters, void** extra) {
  Machine& here = machine();
  ThreadState& thread = this_thread();
  const Lock lock(here.mutex);
  ++here.calls["cuLaunchKernel"];
  Stream* stream = here.stream(handle, thread.device, "cuLaunchKernel");
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (planned_failure(here, stream->device, "cuLaunchKernel")) return CUDA_ERROR_LAUNCH_FAILED;
  if (here.devices[Machine::index(stream->device)].faults.sticky != cudaSuccess)
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  const bool one_dimension = grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1;
  if (!one_dimension || grid_x == 0 || grid_x > most_blocks || block_x == 0 ||
      block_x > most_threads || shared_bytes != 0 || parameters == nullptr || extra != nullptr) {
    here.violate(
        fmt::format("cuLaunchKernel of {} blocks of {} threads, or with parameters that "
                    "these kernels do not take",
                    grid_x, block_x));
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto& kernels = the_library().kernels;
  if (kernel == reinterpret_cast<CUfunction>(&kernels[0])) {
    const auto fold = parameter<Fold>(parameters, 0);
    const auto touches = touches_of(fold);
    for (const Touch& touch : touches)
      if (reinterpret_cast<std::uintptr_t>(touch.data) % 8 != 0)
        here.violate("the kernel tutti_fold is given an address that is not aligned");
    here.push(*stream, {.run = run_of(here.memory, fold, std::uint64_t{grid_x} * block_x)}, touches,
              "the kernel tutti_fold");
    return CUDA_SUCCESS;
  }
  if (kernel == reinterpret_cast<CUfunction>(&kernels[1])) {
    auto* to = parameter<double*>(parameters, 0);
    const auto value = parameter<double>(parameters, 1);
    const Touch touch{to, to == nullptr ? 0 : sizeof value, true};
    here.push(*stream,
              {.run =
                   [memory = &here.memory, to, value] {
                     if (to != nullptr) std::memcpy(memory->bytes(to), &value, sizeof value);
                   }},
              {&touch, 1}, "the kernel tutti_put");
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_HANDLE;
}

CUresult get_error_name(CUresult error, const char** name) {
  switch (error) {
    case CUDA_ERROR_LAUNCH_FAILED:
      *name = "CUDA_ERROR_LAUNCH_FAILED";
      return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_IMAGE:
      *name = "CUDA_ERROR_INVALID_IMAGE";
      return CUDA_SUCCESS;
    default:
      *name = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult driver_get_version(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult device_get(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < 0 || ordinal >= device_count ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult primary_context_state(CUdevice device, unsigned int* flags, int* active) {
  *flags = 0;
  *active = apis().cuda->has_context(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

}  // namespace

std::span<const std::byte> kernel_image() {
  return image;
}

void fill_driver_table(backend::nccl::DriverApi& table) {
  table.driver_get_version = driver_get_version;
  table.device_get = device_get;
  table.device_primary_ctx_get_state = primary_context_state;
  table.library_load_data = library_load_data;
  table.library_get_kernel = library_get_kernel;
  table.launch_kernel = launch_kernel;
  table.get_error_name = get_error_name;
  table.get_error_string = get_error_name;
}

}  // namespace tutti::test::nccl_double
