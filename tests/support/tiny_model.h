#pragma once
// A tiny model with random weights, as a Hugging Face folder: for tests that need any model, not a
// given one.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "base/random.h"
#include "formats/safetensors.h"
#include "models/layout.h"

namespace graft::testing {

inline nlohmann::json tiny_config(int layers = 3) {
  return {{"model_type", "llama"},
          {"vocab_size", 97},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"num_hidden_layers", layers},
          {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", false},
          {"rope_theta", 10000.0},
          {"max_position_embeddings", 256}};
}

// Writes config.json and model.safetensors (f32; norms near 1, matrices of deviation 0.1) to
// `folder`.
inline void write_tiny_model(const std::filesystem::path& folder,
                             const nlohmann::json& config = tiny_config()) {
  write_file_atomically(folder / "config.json", config.dump());
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const VariableSpec& v : base_parameters(read_model_config(folder))) {
    Philox random(3, fnv1a_32(v.name));
    Tensor t = Tensor::empty(DType::kF32, v.shape);
    const double center = v.name.ends_with("norm.weight") ? 1 : 0;
    for (int64_t i = 0; i < t.elements(); ++i) {
      t.data<float>()[i] = static_cast<float>(center + 0.1 * random.normal());
    }
    tensors.emplace_back(v.name, t);
  }
  write_safetensors(folder / "model.safetensors", tensors);
}

}  // namespace graft::testing
