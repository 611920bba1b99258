// Any bytes as a GGUF adapter of a small model: an Error, or factors of the shapes planned.

#include <cstddef>
#include <cstdint>

#include "adapters/gguf_adapter.h"
#include "base/error.h"

namespace {

const graft::ModelConfig& small_model() {
  static const graft::ModelConfig config = graft::parse_model_config(
      R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 4,
          "num_attention_heads": 1, "num_hidden_layers": 1})",
      "config.json");
  return config;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto file = graft::GgufFile::open(std::as_bytes(std::span(data, size)), "fuzz.gguf");
    const graft::GgufAdapter adapter = graft::read_gguf_adapter(file, small_model());
    for (const graft::VariableSpec& v : adapter.plan.variables) {
      GRAFT_CHECK(adapter.tensors.at(v.name).shape() == v.shape);
    }
  } catch (const graft::Error&) {
    // What a bad file must give.
  }
  return 0;
}
