#pragma once

#include "framework.hpp"

namespace framework {

/// The part of the framework that communicates: one rank of a training run.
class Trainer {
 public:
  /// `decorate` as in tutti::GroupOptions.
  explicit Trainer(const Services& services, decltype(tutti::GroupOptions::decorate) decorate = {});

  /// One step. Returns what the ranks have in common after it: the mean of their ranks.
  float step();

  tutti::ProcessGroup& group() noexcept { return group_; }

 private:
  tutti::Tensor make(const tutti::Shape& shape);

  Services services_;
  tutti::ProcessGroup group_;
};

}  // namespace framework
