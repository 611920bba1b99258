// Any names and shapes as a tree of parameters: an Error, or Hugging Face names that translate to
// another layout and back. A line of the input is a name, a space, and a digit for each extent.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "models/parameter_layout.h"

namespace {

const graft::ModelConfig& small_model() {
  static const graft::ModelConfig config = graft::parse_model_config(
      R"({"model_type": "qwen3", "vocab_size": 6, "hidden_size": 4, "intermediate_size": 3,
          "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2,
          "num_hidden_layers": 2})",
      "config.json");
  return config;
}

graft::ParameterTree read_tree(std::string_view text) {
  graft::ParameterTree tree;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t space = line.rfind(' ');
    if (space == std::string_view::npos || line.size() - space > 7) continue;
    graft::Shape shape;
    for (const char c : line.substr(space + 1)) {
      if (c >= '0' && c <= '9') shape.push_back(c - '0');
    }
    tree.emplace(std::string(line.substr(0, space)),
                 graft::Tensor::zeros(graft::DType::kF32, shape));
  }
  return tree;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using graft::ParameterLayout;
  try {
    const graft::ParameterTree tree = read_tree({reinterpret_cast<const char*>(data), size});
    const graft::ParameterTree plain = graft::from_layout(tree, small_model());
    const ParameterLayout unrolled{.layers = ParameterLayout::Layers::kNested};
    const auto again =
        graft::from_layout(graft::to_layout(plain, small_model(), unrolled), small_model());
    GRAFT_CHECK(again.size() == plain.size());
    for (const auto& [name, tensor] : plain) {
      GRAFT_CHECK(again.at(name).shape() == tensor.shape());
    }
  } catch (const graft::Error&) {
    // What a tree of another model, or an ambiguous one, must give.
  }
  return 0;
}
