#include "step/models.hpp"

#include <array>
#include <initializer_list>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "bench/sizes.hpp"
#include "common/exit_code.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

constexpr std::int64_t most_parameters = 100'000;
constexpr std::int64_t most_bytes = std::numeric_limits<std::int64_t>::max();

/// Names parameters as torchvision does.
class ModelBuilder {
 public:
  explicit ModelBuilder(std::string_view name) { model_.name = name; }

  void add(std::string name, std::initializer_list<std::int64_t> shape) {
    model_.parameters.push_back({std::move(name), Shape(shape)});
  }
  /// A convolution without bias and its batch normalization.
  void conv(const std::string& name, const std::string& norm_name, std::int64_t in,
            std::int64_t out, std::int64_t kernel) {
    add(name + ".weight", {out, in, kernel, kernel});
    add(norm_name + ".weight", {out});
    add(norm_name + ".bias", {out});
  }
  Model take() { return std::move(model_); }

 private:
  Model model_{};
};

Model resnet50() {
  constexpr std::array<int, 4> blocks{3, 4, 6, 3};
  constexpr std::int64_t expansion = 4;
  ModelBuilder model("resnet50");
  std::int64_t in = 64;
  model.conv("conv1", "bn1", 3, in, 7);
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    const std::int64_t planes = std::int64_t{64} << stage;
    for (int block = 0; block < blocks[stage]; ++block) {
      const std::string at = fmt::format("layer{}.{}.", stage + 1, block);
      model.conv(at + "conv1", at + "bn1", in, planes, 1);
      model.conv(at + "conv2", at + "bn2", planes, planes, 3);
      model.conv(at + "conv3", at + "bn3", planes, expansion * planes, 1);
      if (block == 0)
        model.conv(at + "downsample.0", at + "downsample.1", in, expansion * planes, 1);
      in = expansion * planes;
    }
  }
  model.add("fc.weight", {1000, in});
  model.add("fc.bias", {1000});
  return model.take();
}

/// `text` is "NxSIZE".
Model uniform(std::string_view name, std::string_view text, DType dtype) {
  const std::size_t x = text.find('x');
  if (x == std::string_view::npos)
    refuse("--model '{}': expected uniform:NxSIZE, such as uniform:16x1M", name);
  const std::int64_t count =
      parse_integer("--model uniform", text.substr(0, x), 1, most_parameters);
  const std::vector<Size> sizes = parse_sizes(text.substr(x + 1));
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t bytes = sizes.size() == 1 ? bytes_of(sizes.front(), dtype) : -1;
  if (bytes < 0 || bytes % element != 0 || bytes > most_bytes / count)
    refuse(
        "--model '{}': SIZE must be one size, a multiple of the {} bytes of {}, and all N must "
        "fit in 63 bits",
        name, element, tutti::name_of(dtype));
  ModelBuilder model(name);
  for (std::int64_t i = 0; i < count; ++i) model.add(fmt::format("{}", i), {bytes / element});
  return model.take();
}

}  // namespace

std::int64_t Model::elements() const {
  std::int64_t sum = 0;
  for (const Parameter& parameter : parameters) sum += parameter.shape.numel();
  return sum;
}

Model parse_model(std::string_view text, DType dtype) {
  constexpr std::string_view prefix = "uniform:";
  if (text.starts_with(prefix)) return uniform(text, text.substr(prefix.size()), dtype);
  if (text == "resnet50") return resnet50();
  refuse("--model '{}': unknown; known: resnet50 uniform:NxSIZE", text);
}

}  // namespace tutti::tool
