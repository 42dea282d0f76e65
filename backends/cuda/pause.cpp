#include "pause.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace tutti::backend::cuda {

void Pause::operator()() {
  constexpr int quick = 64;
  if (++turns_ < quick) return std::this_thread::yield();
  const auto longer = std::min(10 * (turns_ - quick + 1), 200);
  std::this_thread::sleep_for(std::chrono::microseconds(longer));
}

}  // namespace tutti::backend::cuda
