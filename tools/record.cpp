#include "record.hpp"

#include <algorithm>

namespace tutti::tool {

std::string_view name_of(Flag flag) noexcept {
  switch (flag) {
    case Flag::few_samples:
      return "few_samples";
    case Flag::noisy:
      return "noisy";
    case Flag::slow_first:
      return "slow_first";
    case Flag::capped_mem:
      break;
  }
  return "capped_mem";
}

std::string_view name_of(Status status) noexcept {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::wrong_data:
      return "wrong_data";
    case Status::timeout:
      return "timeout";
    case Status::interrupted:
      return "interrupted";
    case Status::error:
      break;
  }
  return "error";
}

bool Row::has(Flag flag) const noexcept {
  return std::find(flags.begin(), flags.end(), flag) != flags.end();
}

}  // namespace tutti::tool
