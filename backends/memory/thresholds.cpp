#include "thresholds.hpp"

#include <string_view>

#include <fmt/format.h>

#include "layout.hpp"

namespace tutti::backend::memory {

std::string describe_thresholds() {
  std::string text = fmt::format("{:<12}{}\n", "bytes", "way of the data");
  const auto row = [&](std::size_t bytes, std::string_view way) {
    text += fmt::format("{:<12}{}\n", bytes == 0 ? "any" : fmt::format("<= {}", bytes), way);
  };
  row(inline_bytes, "in the entries, per rank");
  row(least_direct, "through slots");
  row(0, "between the arrays, if peers can map them or all ranks are threads of one process");
  row(0, "otherwise through slots in rounds");
  text += fmt::format(
      "reductions in slots: every rank folds arrays of up to {} bytes (2 ranks; reproducible: {}), "
      "{} / W (W > 2), and its slice of larger ones\n",
      fold_everything(2, false), fold_everything(2, true), fold_everything(1, false));
  return text;
}

}  // namespace tutti::backend::memory
