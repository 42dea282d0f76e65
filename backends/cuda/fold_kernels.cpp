#include "fold_kernels.hpp"

#include <algorithm>
#include <utility>

#include <tutti/error.hpp>

#include "device.hpp"
#include "values/fail.hpp"

namespace tutti::backend::cuda {
namespace {

#include "cuda/fold_image.inc"  // fold_image_words

constexpr std::uint64_t block = 256;
/// The most blocks of a launch: more than any device runs at once. For more words, each thread
/// folds several.
constexpr std::uint64_t most_blocks = 4096;

void check(const DriverApi& driver, CUresult code, const char* call) {
  if (code == CUDA_SUCCESS) return;
  const char* name = nullptr;
  const char* text = nullptr;
  (void)driver.get_error_name(code, &name);
  (void)driver.get_error_string(code, &text);
  internal::failf(code == CUDA_ERROR_OUT_OF_MEMORY ? Errc::resource_exhausted : Errc::backend,
                  "{} failed: {} ({})", call, name == nullptr ? "an unknown error" : name,
                  text == nullptr ? "no text" : text);
}

}  // namespace

std::span<const std::byte> fold_image() noexcept {
  return std::as_bytes(std::span(fold_image_words));
}

FoldKernels::FoldKernels(const DriverApi& driver, std::span<const std::byte> image)
    : driver_(driver) {
  CUlibrary library = nullptr;
  check(driver,
        driver.library_load_data(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cuLibraryLoadData");
  check(driver, driver.library_get_kernel(&fold_, library, "tutti_fold"), "cuLibraryGetKernel");
  check(driver, driver.library_get_kernel(&put_, library, "tutti_put"), "cuLibraryGetKernel");
}

void FoldKernels::launch(CUkernel kernel, std::uint64_t threads, void** parameters,
                         cudaStream_t stream) const {
  const auto blocks = std::clamp<std::uint64_t>((threads + block - 1) / block, 1, most_blocks);
  // The driver accepts a CUkernel cast to CUfunction.
  check(driver_,
        driver_.launch_kernel(
            reinterpret_cast<CUfunction>(kernel), static_cast<unsigned int>(blocks), 1, 1,
            static_cast<unsigned int>(block), 1, 1, 0, stream, parameters, nullptr),
        "cuLaunchKernel");
}

void FoldKernels::fold(const Fold& what, cudaStream_t stream) const {
  Fold copy = what;
  void* parameters[] = {&copy};
  launch(fold_, words_of(what), parameters, stream);
}

void FoldKernels::put(double* to, double value, cudaStream_t stream) const {
  void* parameters[] = {&to, &value};
  launch(put_, 1, parameters, stream);
}

void FoldKernels::load(cudaStream_t stream) const {
  fold({}, stream);
  put(nullptr, 0, stream);
}

const FoldKernels& fold_kernels(const DriverApi* driver, std::span<const std::byte> image) {
  if (driver == nullptr || image.empty())
    tutti::fail(Errc::unsupported, "the library was built without nvcc");
  return process_wide<FoldKernels>(std::pair(driver, image.data()), *driver, image);
}

}  // namespace tutti::backend::cuda
