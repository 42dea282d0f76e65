#pragma once

namespace tutti::backend::cuda {

/// Pauses that grow, for loops that ask again and again.
class Pause {
 public:
  void operator()();

 private:
  int turns_ = 0;
};

}  // namespace tutti::backend::cuda
