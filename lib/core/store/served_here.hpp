#pragma once

#include <tutti/store/store.hpp>

namespace tutti::internal {

/// The interface of stores that know whether their server is in this process, beside Store.
class ServedStore {
 public:
  virtual ~ServedStore() = default;
  virtual bool is_served_here() const noexcept = 0;
};

/// True if this process serves the store, which therefore ends with the process. False if it does
/// not, or if the store does not know.
bool is_served_here(const Store& store) noexcept;

}  // namespace tutti::internal
