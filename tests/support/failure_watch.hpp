#pragma once

namespace tutti::test {

/// True if an ASSERT or a FAIL() failed on this thread since this was made.
class FailureWatch {
 public:
  FailureWatch() noexcept;
  bool fatal() const noexcept;

 private:
  int before_;
};

}  // namespace tutti::test
