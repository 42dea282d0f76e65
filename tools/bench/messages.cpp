#include "bench/messages.hpp"

#include <algorithm>
#include <cstddef>

#include <tutti/work.hpp>

namespace tutti::tool {
namespace {

constexpr std::int64_t most_in_flight = 64;
constexpr std::int64_t elements_in_flight = 64 * 65'536;

/// `count` elements of `array` from `first` on.
TensorView elements_of(const TensorView& array, std::int64_t first, std::int64_t count) {
  auto* data =
      static_cast<std::byte*>(array.data) + static_cast<std::size_t>(first) * size_of(array.dtype);
  return {data, array.dtype, Shape{count}, array.device};
}

void receive_window(ProcessGroup& group, const Arrays& arrays, const How& how,
                    std::vector<Work>& works) {
  // Every message has memory of its own, so that each is checked.
  const std::int64_t count = how.cell.count;
  for (std::int64_t i = 0; i < window(how.cell); ++i)
    works.push_back(group.recv_async(elements_of(arrays.out, i * count, count), partner(how.cell),
                                     0, how.options));
}

void send_window(ProcessGroup& group, const Arrays& arrays, const How& how,
                 std::vector<Work>& works) {
  for (std::int64_t i = 0; i < window(how.cell); ++i)
    works.push_back(group.send_async(arrays.in, partner(how.cell), 0, how.options));
}

void wait_for(std::vector<Work>& works) {
  for (Work& work : works) work.wait();
}

}  // namespace

int partner(const Cell& cell) noexcept {
  const int half = cell.ranks / 2;
  return cell.rank < half ? cell.rank + half : cell.rank - half;
}

std::int64_t window(const Cell& cell) noexcept {
  return std::clamp<std::int64_t>(elements_in_flight / std::max<std::int64_t>(cell.count, 1), 2,
                                  most_in_flight);
}

std::vector<Piece> window_of_partner(const Cell& cell) {
  const int from = partner(cell);
  std::vector<Piece> pieces;
  for (std::int64_t i = 0; i < window(cell); ++i)
    pieces.push_back({i * cell.count, cell.count, {from, from + 1, 0}});
  return pieces;
}

std::vector<Piece> window_or_acknowledgement(const Cell& cell) {
  if (!begins(cell)) return window_of_partner(cell);
  return {{0, std::min<std::int64_t>(cell.count, 1), {cell.rank, cell.rank + 1, 0}}};
}

void ping_pong(ProcessGroup& group, const Arrays& arrays, const How& how) {
  const int peer = partner(how.cell);
  if (begins(how.cell)) group.send(arrays.in, peer, 0, how.options);
  group.recv(arrays.out, peer, 0, how.options);
  if (!begins(how.cell)) group.send(arrays.in, peer, 0, how.options);
}

void send_window(ProcessGroup& group, const Arrays& arrays, const How& how) {
  std::vector<Work> works;
  const int peer = partner(how.cell);
  const auto acknowledgement =
      elements_of(arrays.out, 0, std::min<std::int64_t>(how.cell.count, 1));
  if (begins(how.cell)) {
    send_window(group, arrays, how, works);
    wait_for(works);
    group.recv(acknowledgement, peer, 0, how.options);
  } else {
    receive_window(group, arrays, how, works);
    wait_for(works);
    group.send(acknowledgement, peer, 0, how.options);
  }
}

void exchange_windows(ProcessGroup& group, const Arrays& arrays, const How& how) {
  std::vector<Work> works;
  receive_window(group, arrays, how, works);
  send_window(group, arrays, how, works);
  wait_for(works);
}

}  // namespace tutti::tool
