// The backend of arrays on CUDA devices, one device per rank (docs/design/nccl.md).

#include "nccl.hpp"

#include <utility>

#include <fmt/format.h>

#include "backend/rendezvous.hpp"
#include "group.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {
namespace {

class NcclBackend final : public Backend {
 public:
  explicit NcclBackend(std::shared_ptr<Group> group) : group_(std::move(group)) {}
  ~NcclBackend() override { group_->leave(); }

  bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept override {
    return group_->launcher().supports(operation, dtype, reduce);
  }
  Memory& memory() noexcept override { return group_->memory(); }
  Work launch(std::span<const Op> ops, const Call& call) override {
    return group_->launch(ops, call);
  }
  void refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept override {
    group_->refuse(ops, call, why);
  }
  std::unique_ptr<Backend> split(const SplitInit& init) override {
    return make_nccl(group_->init().part(init), group_->apis());
  }
  void abort(std::string_view why) noexcept override { group_->abort(why); }
  std::optional<Error> failure() const override { return group_->failure().cause(); }
  RegistrationKind registrable(const TensorView& block, Stream stream) const override {
    return group_->registrations().kind_of(block, stream);
  }
  Registration register_memory(const TensorView& block, RegistrationKind kind,
                               Deadline limit) override {
    return group_->register_memory(block, kind, limit);
  }
  Memory& registrable_memory() noexcept override { return group_->registrations().memory(); }
  Memory& staging_memory() noexcept override { return group_->staging_memory(); }
  std::string transport() const override {
    int version = 0;
    return group_->apis().nccl->get_version(&version) == ncclSuccess
               ? "nccl/" + version_text(version)
               : "nccl";
  }

 private:
  std::shared_ptr<Group> group_;
};

std::string unavailable() {
  try {
    (void)nccl_api();
    return cuda::absent(cuda::cuda_api());
  } catch (const Error& error) {
    return error.message();
  }
}

std::string details() {
  try {
    int runtime = 0;
    int driver = 0;
    int count = 0;
    const auto& cuda = cuda::cuda_api();
    const auto features = Features::of(nccl_api());
    check(cuda, cuda.runtime_get_version(&runtime), "cudaRuntimeGetVersion");
    check(cuda, cuda.driver_get_version(&driver), "cudaDriverGetVersion");
    check(cuda, cuda.get_device_count(&count), "cudaGetDeviceCount");
    return fmt::format(
        "NCCL {}, CUDA runtime {}, driver for CUDA {}, {} device{}\n{}\n{}\n",
        version_text(features.version), cuda::version_text(runtime), cuda::version_text(driver),
        count, count == 1 ? "" : "s", to_string(features),
        cuda::fold_image().empty() ? "built without nvcc: only the reductions of NCCL"
                                   : "reductions that NCCL lacks: by kernels of this library");
  } catch (const Error& error) {
    return fmt::format("{}\n", error.message());
  }
}

std::unique_ptr<Backend> make(const BackendInit& init) {
  internal::refuse_encryption("nccl");
  const auto image = cuda::fold_image();
  return make_nccl(
      init, {&nccl_api(), &cuda::cuda_api(), image.empty() ? nullptr : &cuda::driver_api(), image});
}

}  // namespace

std::unique_ptr<Backend> make_nccl(const BackendInit& init, Apis apis) {
  return std::make_unique<NcclBackend>(Group::make(init, apis));
}

extern const BackendEntry entry;
const BackendEntry entry{
    .name = "nccl",
    .summary = "CUDA devices, one per rank, over NCCL 2.18 or newer",
    .serves = [](Device device) noexcept { return device.type == DeviceType::cuda; },
    .unavailable = unavailable,
    .make = make,
    .details = details,
    .adopts = true,
    .device_count = cuda::count_devices,
};

}  // namespace tutti::backend::nccl
