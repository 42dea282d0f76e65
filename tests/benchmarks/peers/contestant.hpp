#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tutti::peers {

/// An operation on float32 arrays; reductions are sums. Named by contest.py.
struct Request {
  std::string operation;
  /// Elements: of the array (all_reduce, broadcast, reduce, copy); of one rank's block
  /// (all_gather); of each rank's block (all_gather_rows); of each parameter (step, step_views).
  /// barrier and exchange: 0.
  std::vector<std::size_t> counts;

  bool operator==(const Request&) const = default;
};

/// The arrays of a call. all_reduce and broadcast work in place, in `in`; a step replaces the
/// gradients in `in`, one after the other, by their means over the ranks. The gradients of
/// step_views are in buckets; the first call copies them from `in` and back.
struct Arrays {
  std::span<float> in;
  std::span<float> out;
};

/// A call with its number from 0. The root of broadcast and reduce is the number modulo the size.
using Call = std::function<void(int number)>;

/// One rank of a program that contest.py compares with others.
struct Contestant {
  int rank = 0;
  int size = 1;
  std::string version{};  ///< Of the library, for the record.
  /// Makes a call; an empty one if the library has no such operation.
  std::function<Call(const Request& request, Arrays arrays)> make;
  /// Memory of the library for arrays, never freed before `make` has replaced their call; empty:
  /// memory of the program.
  std::function<std::span<float>(std::size_t count)> allocate{};
};

/// Serves the commands that contest.py writes into the pipe DIRECTORY/RANK.in, until its end. The
/// rank sleeps between them. The first call of each request is checked. Returns the exit status.
int serve(const std::string& directory, const Contestant& contestant);

}  // namespace tutti::peers
