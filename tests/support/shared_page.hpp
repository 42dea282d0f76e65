#pragma once

#include <sys/mman.h>

#include <new>

namespace tutti::test {

/// A T in memory that this process shares with the children that it forks from now on.
template <typename T>
class SharedPage {
 public:
  SharedPage()
      : page_(
            ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (page_ == MAP_FAILED) throw std::bad_alloc();
    value_ = new (page_) T{};
  }
  ~SharedPage() { ::munmap(page_, sizeof(T)); }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;

  T* operator->() const noexcept { return value_; }

 private:
  void* page_;
  T* value_;
};

}  // namespace tutti::test
