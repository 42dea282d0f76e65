#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <tutti/process_group.hpp>

namespace tutti::test {

/// The arrays of a rank, with which it makes one call after another.
struct Arrays {
  /// `bytes`: of the largest array of a call; at least one element per rank.
  Arrays(const ProcessGroup& group, std::size_t bytes);

  int rank;
  int size;
  std::vector<float> slice;        ///< [n].
  std::vector<float> whole;        ///< [size, n].
  std::vector<float> whole_too;    ///< [size, n].
  std::vector<std::int64_t> rows;  ///< Of each rank, n in sum over two ranks; not equal.
  std::string text;                ///< `bytes` of rank 0.
  int calls = 0;                   ///< The same on all ranks: roots take turns.
};

/// A function of the public API, called by every rank.
struct Operation {
  std::string name;
  std::function<void(ProcessGroup& group, Arrays& arrays)> call;
};

std::span<const Operation> operations();

}  // namespace tutti::test
