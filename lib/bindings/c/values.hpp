#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/call_options.hpp>
#include <tutti/memory.hpp>
#include <tutti/process_group.hpp>
#include <tutti/row_layout.hpp>
#include <tutti/tensor.hpp>

#include "c/guard.hpp"

// The values of the C ABI as those of C++, and the handles that several sources use.

namespace tutti::c_abi {

inline std::string_view text_of(const void* data, std::size_t bytes) {
  return {reinterpret_cast<const char*>(bytes_of(data, bytes).data()), bytes};
}
inline std::string_view text(const char* from) {
  return from == nullptr ? std::string_view() : std::string_view(from);
}

/// Values out of range become an enumerator that the front refuses on all ranks.
template <typename Enum>
Enum enumerator(std::int32_t value) {
  return static_cast<Enum>(value < 0 || value > 255 ? 255 : value);
}

Device device(std::int32_t type, std::int32_t index);
TensorView view(const tutti_array* array);
std::vector<TensorView> views(const tutti_array* list, std::size_t count);
std::vector<ConstTensorView> const_views(const tutti_array* list, std::size_t count);
tutti_array describe(const ConstTensorView& array);
std::shared_ptr<Memory> make_memory(const tutti_memory& functions);

/// The options of one call.
class Call {
 public:
  explicit Call(const tutti_call_options* from);
  const CallOptions& options() const { return options_; }
  ReduceOp op(std::int32_t kind) const;
  /// For async calls that allocate.
  const std::shared_ptr<Memory>& memory() const { return memory_; }

 private:
  tutti_call_options from_;
  std::shared_ptr<Memory> memory_;
  CallOptions options_;
};

Rows rows(const ProcessGroup& group, const std::int64_t* of_ranks);
RowLayout layout(const ProcessGroup& group, const std::int64_t* of_ranks);

/// The arrays of a result.
struct Content {
  struct Item {
    tutti_array array;
    std::shared_ptr<void> owner;
  };
  std::vector<Item> arrays;
  std::vector<std::int64_t> rows;

  void add(Tensor&& tensor);
  void add(const void* data, std::size_t bytes) {
    add(std::vector<std::uint8_t>(static_cast<const std::uint8_t*>(data),
                                  static_cast<const std::uint8_t*>(data) + bytes));
  }
  void add(std::string_view bytes) { add(bytes.data(), bytes.size()); }
  template <typename T>
  void add(std::vector<T> values) {
    auto owner = std::make_shared<std::vector<T>>(std::move(values));
    arrays.push_back({describe(ConstTensorView(*owner)), owner});
  }
  void set_rows(const RowLayout& of_ranks) {
    rows.assign(of_ranks.counts().begin(), of_ranks.counts().end());
  }
};

}  // namespace tutti::c_abi

struct tutti_group {
  tutti::ProcessGroup group;
  std::string transport{};
};

struct tutti_store {
  std::shared_ptr<tutti::Store> store;
};

/// Shared with the Work of the call that fills it.
struct tutti_result {
  std::shared_ptr<tutti::c_abi::Content> content = std::make_shared<tutti::c_abi::Content>();
};

namespace tutti::c_abi {

inline ProcessGroup& of(tutti_group* group) {
  return deref(group, "the group").group;
}
inline const ProcessGroup& of(const tutti_group* group) {
  return deref(group, "the group").group;
}
inline Store& of(tutti_store* store) {
  return *deref(store, "the store").store;
}

/// The whole of a function that returns a result: sets *to to one that `fill` has filled.
template <typename F>
tutti_status give_result(tutti_result** to, F&& fill) noexcept {
  return guard([&] {
    auto& out = handle(to);
    auto result = std::make_unique<tutti_result>();
    fill(*result->content);
    out = result.release();
  });
}

}  // namespace tutti::c_abi
