#pragma once

#include <tutti/store/store.hpp>
#include <tutti/store/token.hpp>

namespace tutti::internal {

/// The interface of stores that know their server, beside Store.
class ServedStore {
 public:
  virtual ~ServedStore() = default;
  virtual bool is_served_here() const noexcept = 0;
  virtual StoreIdentity identity() const = 0;
};

/// True if this process serves the store, which therefore ends with the process. False if it does
/// not, or if the store does not know.
bool is_served_here(const Store& store) noexcept;

/// The claims of this process to the store's server; empty if the store does not know them.
StoreIdentity identity_of(const Store& store);

}  // namespace tutti::internal
