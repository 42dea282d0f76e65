#include <tutti/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

#include "values/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {

Memory::~Memory() = default;

namespace {

class HostMemory final : public Memory {
 public:
  Device device() const noexcept override { return {}; }
  void* allocate(std::size_t bytes, Stream) override {
    constexpr std::size_t line = 64;
    void* data =
        bytes > SIZE_MAX - line
            ? nullptr
            : std::aligned_alloc(line, (std::max<std::size_t>(bytes, 1) + line - 1) / line * line);
    if (data == nullptr)
      internal::failf(Errc::resource_exhausted, "host memory: cannot allocate {} bytes", bytes);
    return data;
  }
  void release(void* data, std::size_t, Stream) noexcept override { std::free(data); }
  void copy(void* to, const void* from, std::size_t bytes, Stream) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
};

}  // namespace

Memory& host_memory() noexcept {
  // Stateless and never destroyed: Tensors with static storage may outlive any static object.
  alignas(HostMemory) static std::byte storage[sizeof(HostMemory)];
  static Memory& memory = *new (storage) HostMemory;
  return memory;
}

}  // namespace tutti
