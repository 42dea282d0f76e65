#pragma once

#include <tutti/store/store.hpp>
#include <tutti/store/token.hpp>

namespace tutti::internal {

/// The interface of stores that know their server, beside Store.
class ServedStore {
 public:
  virtual ~ServedStore() = default;
  virtual bool is_served_here() const noexcept = 0;
  virtual StoreToken token() const = 0;
};

/// True if this process serves the store, which therefore ends with the process. False if it does
/// not, or if the store does not know.
bool is_served_here(const Store& store) noexcept;

/// The token of the store's clients; of other stores that of TUTTI_TOKEN_FILE, or none.
StoreToken token_of(const Store& store);

}  // namespace tutti::internal
