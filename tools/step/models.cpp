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

/// Names parameters as torchvision and Hugging Face do.
class ModelBuilder {
 public:
  explicit ModelBuilder(std::string_view name) { model_.name = name; }

  void add(std::string name, std::initializer_list<std::int64_t> shape) {
    model_.parameters.push_back({std::move(name), Shape(shape)});
  }
  /// Weight and bias of a batch or layer normalization.
  void norm(const std::string& name, std::int64_t width) {
    add(name + ".weight", {width});
    add(name + ".bias", {width});
  }
  void linear(const std::string& name, std::int64_t in, std::int64_t out) {
    add(name + ".weight", {out, in});
    add(name + ".bias", {out});
  }
  /// A convolution without bias and its batch normalization.
  void conv(const std::string& name, const std::string& norm_name, std::int64_t in,
            std::int64_t out, std::int64_t kernel) {
    add(name + ".weight", {out, in, kernel, kernel});
    norm(norm_name, out);
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
  model.linear("fc", in, 1000);
  return model.take();
}

// Both transformers are 12 layers of width 768 with 3072 in the middle.
constexpr int layers = 12;
constexpr std::int64_t width = 768;
constexpr std::int64_t middle = 4 * width;

Model bert_base() {
  ModelBuilder model("bert-base");
  model.add("embeddings.word_embeddings.weight", {30522, width});
  model.add("embeddings.position_embeddings.weight", {512, width});
  model.add("embeddings.token_type_embeddings.weight", {2, width});
  model.norm("embeddings.LayerNorm", width);
  for (int layer = 0; layer < layers; ++layer) {
    const std::string at = fmt::format("encoder.layer.{}.", layer);
    for (const char* name : {"query", "key", "value"})
      model.linear(at + "attention.self." + name, width, width);
    model.linear(at + "attention.output.dense", width, width);
    model.norm(at + "attention.output.LayerNorm", width);
    model.linear(at + "intermediate.dense", width, middle);
    model.linear(at + "output.dense", middle, width);
    model.norm(at + "output.LayerNorm", width);
  }
  model.linear("pooler.dense", width, width);
  return model.take();
}

Model gpt2() {
  ModelBuilder model("gpt2");
  model.add("wte.weight", {50257, width});
  model.add("wpe.weight", {1024, width});
  for (int layer = 0; layer < layers; ++layer) {
    const std::string at = fmt::format("h.{}.", layer);
    model.norm(at + "ln_1", width);
    model.linear(at + "attn.c_attn", width, 3 * width);
    model.linear(at + "attn.c_proj", width, width);
    model.norm(at + "ln_2", width);
    model.linear(at + "mlp.c_fc", width, middle);
    model.linear(at + "mlp.c_proj", middle, width);
  }
  model.norm("ln_f", width);
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
  if (text == "bert-base") return bert_base();
  if (text == "gpt2") return gpt2();
  refuse("--model '{}': unknown; known: resnet50 bert-base gpt2 uniform:NxSIZE", text);
}

}  // namespace tutti::tool
