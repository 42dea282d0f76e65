#pragma once

namespace tutti::test {

/// Whether an ASSERT or a FAIL() went wrong on this thread since this was made.
class FailureWatch {
 public:
  FailureWatch() noexcept;
  bool fatal() const noexcept;

 private:
  int before_;
};

}  // namespace tutti::test
