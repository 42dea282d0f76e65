#include "bench/gather_calls.hpp"

#include <fmt/format.h>

#include <tutti/gather.hpp>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

/// Memory that gives a call the array prepared for its result.
class PreparedMemory final : public Memory {
 public:
  PreparedMemory(const TensorView& array, Memory& copies) : array_(array), copies_(copies) {}
  Device device() const noexcept override { return array_.device; }
  void* allocate(std::size_t bytes, Stream) override {
    if (bytes != array_.bytes())
      throw Failure(Exit::wrong_data,
                    fmt::format("the result has {} bytes; expected {}", bytes, array_.bytes()));
    return array_.data;
  }
  void release(void*, std::size_t, Stream) noexcept override {}
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    copies_.copy(to, from, bytes, stream);
  }

 private:
  TensorView array_;
  Memory& copies_;
};

void check_layout(std::string_view name, const RowLayout& found, const Cell& cell) {
  if (found != cell.blocks)
    throw Failure(Exit::wrong_data, fmt::format("{} returned the row counts {}, expected {}", name,
                                                to_string(found), to_string(cell.blocks)));
}

CallOptions in_memory(const How& how, Memory& memory) {
  auto options = how.options;
  options.memory = &memory;
  return options;
}

}  // namespace

void gather_unknown_rows(ProcessGroup& group, const Arrays& arrays, const How& how) {
  PreparedMemory memory(arrays.out, group.memory());
  const auto all = all_gather_rows(group, arrays.in, {}, in_memory(how, memory));
  check_layout("all_gather_rows", all.rows, how.cell);
}

void gather_padded_rows(ProcessGroup& group, const Arrays& arrays, const How& how) {
  PreparedMemory memory(arrays.out, group.memory());
  const auto all = all_gather_padded(group, arrays.in, 0, {}, in_memory(how, memory));
  check_layout("all_gather_padded", all.rows, how.cell);
}

}  // namespace tutti::tool
