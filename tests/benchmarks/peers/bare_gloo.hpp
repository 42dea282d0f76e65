#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/context.h>

namespace tutti::peers {

/// Gloo's own calls as a program without this library would make them: float32, sum.
class Bare {
 public:
  using Algorithm = ::gloo::AllreduceOptions::Algorithm;

  /// `directory`: empty, the same on all ranks.
  Bare(int rank, int size, const std::string& directory);

  void all_reduce(std::span<float> data, Algorithm algorithm);
  void reduce(std::span<float> in, std::span<float> out, int root);
  void broadcast(std::span<float> data, int root);
  void all_gather(std::span<float> in, std::span<float> out);
  void all_gather_rows(std::span<float> in, std::span<float> out, std::vector<std::size_t> rows);
  void barrier();

 private:
  std::shared_ptr<::gloo::Context> context_;
};

}  // namespace tutti::peers
