#include <array>

#include <tutti/backend/backend_table.hpp>

// backend_list.inc, which backends/meson.build generates, has one line TUTTI_BACKEND(name) per
// backend of this build.
#define TUTTI_BACKEND(name)               \
  namespace name {                        \
  extern const tutti::BackendEntry entry; \
  }
namespace tutti::backend {
#include "backend_list.inc"
}
#undef TUTTI_BACKEND

namespace [[gnu::visibility("default")]] tutti {

std::span<const BackendEntry> backends() noexcept {
  // The entries are constants of other sources, which may be initialised after constants of this
  // source. The first call copies them.
  static const std::array table{
#define TUTTI_BACKEND(name) backend::name::entry,
#include "backend_list.inc"
#undef TUTTI_BACKEND
  };
  return table;
}

}  // namespace tutti
