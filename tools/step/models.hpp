#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/dtype.hpp>
#include <tutti/shape.hpp>

namespace tutti::tool {

/// The parameters of a model, in order of registration, without values.
struct Model {
  struct Parameter {
    std::string name{};
    Shape shape{};
  };
  std::string name{};  ///< As --model has it.
  std::vector<Parameter> parameters{};

  std::int64_t elements() const;
};

/// "resnet50" (He et al., CVPR 2016), or "uniform:NxSIZE", N parameters of SIZE each.
/// @throws Failure usage.
Model parse_model(std::string_view text, DType dtype);

}  // namespace tutti::tool
