// Two limits of the machine, as a contestant of contest.py: the exchange of two cache lines between
// two cores, and a copy by all ranks at once. usage: peer_limits DIRECTORY SIZE

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "contestant.hpp"

namespace tutti::peers {
namespace {

struct alignas(128) Line {
  std::atomic<std::uint32_t> value{0};
};
Line lines[2];

/// Stores to this rank's line and waits for the peer's: the least that a barrier of two ranks does.
/// Other ranks do nothing.
Call exchange(int rank) {
  if (rank > 1) return [](int) {};
  return [&mine = lines[rank], &peer = lines[1 - rank]](int) {
    const auto next = mine.value.load(std::memory_order_relaxed) + 1;
    mine.value.store(next, std::memory_order_relaxed);
    // Spins: orders nothing, no other memory is read.
    while (static_cast<std::int32_t>(peer.value.load(std::memory_order_relaxed) - next) < 0) {
    }
  };
}

/// Copies in pieces, because memcpy of a large array may use stores past the cache.
void copy(Arrays arrays) {
  constexpr std::size_t piece = 1024;
  for (std::size_t i = 0; i < arrays.in.size(); i += piece)
    std::memcpy(arrays.out.data() + i, arrays.in.data() + i,
                std::min(piece, arrays.in.size() - i) * sizeof(float));
}

Call make(int rank, const Request& request, Arrays arrays) {
  if (request.operation == "exchange" || request.operation == "barrier") return exchange(rank);
  if (request.operation == "copy") return [arrays](int) { copy(arrays); };
  return {};
}

}  // namespace
}  // namespace tutti::peers

int main(int count, char** words) {
  using namespace tutti::peers;
  if (count != 3) return 2;
  const int size = std::stoi(words[2]);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([=] {
      serve(words[1],
            {.rank = rank, .size = size, .make = [rank](const auto& request, auto arrays) {
               return make(rank, request, arrays);
             }});
    });
}
