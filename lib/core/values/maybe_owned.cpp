#include <tutti/maybe_owned.hpp>

namespace [[gnu::visibility("default")]] tutti {

Tensor MaybeOwned::take(Memory& memory) && {
  if (!is_input_) return std::move(own_);
  Tensor copy(memory, shape(), dtype());
  if (bytes() != 0) memory.copy(copy.data(), data(), bytes(), {});
  return copy;
}

}  // namespace tutti
