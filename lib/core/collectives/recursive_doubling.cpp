#include "collectives/functions.hpp"

#include <bit>
#include <cstddef>

#include "collectives/blocks.hpp"
#include "collectives/exchange.hpp"
#include "collectives/reducer.hpp"

namespace tutti::collectives {

void all_reduce_recursive_doubling(Wire& wire, const Op& op) {
  const int me = wire.rank();
  const int size = wire.size();
  const Reducer reducer(op, size);
  const auto bytes = op.in.bytes();
  const int half = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
  const int extra = size - half;
  Arena arena(wire, 2 * bytes);
  auto* const sum = arena.take(bytes).data();
  auto* const theirs = arena.take(bytes).data();
  reducer.prepare(sum, op.in.data, bytes);

  // The odd ranks below 2 * extra only exchange arrays with their neighbours, the partners.
  const bool aside = me < 2 * extra && me % 2 == 1;
  const bool helps = me < 2 * extra && me % 2 == 0;
  if (aside) {
    const Flow send{me - 1, sum, bytes};
    exchange(wire, {&send, 1}, {});
  } else if (helps) {
    const Flow recv{me + 1, theirs, bytes};
    exchange(wire, {}, {&recv, 1});
    reducer.combine(sum, sum, theirs, bytes);
  }
  if (!aside) {
    const int position = helps ? me / 2 : me - extra;
    const auto real = [&](int p) { return p < extra ? 2 * p : p + extra; };
    for (int bit = 1; bit < half; bit *= 2) {
      const int partner = position ^ bit;
      const Flow send{real(partner), sum, bytes};
      const Flow recv{real(partner), theirs, bytes};
      exchange(wire, {&send, 1}, {&recv, 1});
      if (partner < position)
        reducer.combine(sum, theirs, sum, bytes);
      else
        reducer.combine(sum, sum, theirs, bytes);
    }
    reducer.finish(sum, bytes);
  }
  if (helps) {
    const Flow send{me + 1, sum, bytes};
    exchange(wire, {&send, 1}, {});
  } else if (aside) {
    const Flow recv{me - 1, sum, bytes};
    exchange(wire, {}, {&recv, 1});
  }
  copy_bytes(op.out.data, sum, bytes);
}

}  // namespace tutti::collectives
