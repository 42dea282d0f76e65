#include "collectives/functions.hpp"

#include <array>
#include <cstddef>
#include <span>

#include "collectives/blocks.hpp"
#include "collectives/exchange.hpp"

namespace tutti::collectives {

void broadcast_binomial_tree(Wire& wire, const Op& op) {
  const int size = wire.size();
  const int me = (wire.rank() + size - op.root) % size;  // The root is 0.
  const auto real = [&](int r) { return (r + op.root) % size; };
  auto* data = static_cast<Bytes>(op.out.data);
  const auto bytes = op.out.bytes();
  if (me == 0) copy_bytes(data, op.in.data, bytes);
  int bit = 1;
  for (; bit < size; bit *= 2)
    if ((me & bit) != 0) {
      const Flow recv{real(me - bit), data, bytes};
      exchange(wire, {}, {&recv, 1});
      break;
    }
  std::array<Flow, 32> children;
  std::size_t n = 0;
  for (bit /= 2; bit > 0; bit /= 2)
    if (me + bit < size) children[n++] = {real(me + bit), data, bytes};
  exchange(wire, std::span(children).first(n), {});
}

}  // namespace tutti::collectives
