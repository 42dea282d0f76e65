#pragma once

#include "framework.hpp"

namespace framework {

/// The part of the framework that communicates: one rank of a training run.
class Trainer {
 public:
  /// `decorate` as in tutti::GroupOptions.
  explicit Trainer(const Services& services, decltype(tutti::GroupOptions::decorate) decorate = {});

  /// Runs one step. Returns the mean of the ranks' numbers, the same on all ranks.
  float step();

  tutti::ProcessGroup& group() noexcept { return group_; }

 private:
  tutti::Tensor make(const tutti::Shape& shape);

  Services services_;
  tutti::ProcessGroup group_;
};

}  // namespace framework
