#pragma once
// One description of a causal language model, whatever family and file it comes from.
//
// A family (llama, mistral, qwen2, qwen3, ...) is mostly a table that says how its config.json and
// its GGUF metadata map to these fields; see models/families.h. What varies from layer to layer
// (the window, the rotary table) is a property of the layer, with no assumption of a period.
//
//   ModelConfig config = read_model_config("SmolLM2-135M-Instruct");   // a folder or a .gguf
//   config.layers[7].window;

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/stored_quantization.h"
#include "ops/attention.h"

namespace graft {

// The parameters of config.json's `rope_parameters` (or `rope_theta` with `rope_scaling`).
struct RopeParameters {
  std::string type = "default";  // linear, llama3, yarn, or kUnnamedRope
  double theta = 10000;
  double factor = 1;
  // llama3
  double low_freq_factor = 1, high_freq_factor = 4;
  double original_max_position_embeddings = 0;
  // yarn (Peng et al., 2023)
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  std::optional<double> attention_factor = std::nullopt;
  double mscale = 0, mscale_all_dim = 0;
  friend bool operator==(const RopeParameters&, const RopeParameters&) = default;
};

// Frequencies that a GGUF file lists and that none of the named types gives.
inline constexpr const char* kUnnamedRope = "unnamed";

// Rotary frequencies, resolved: any scaling (linear, llama3, YaRN) is already in them.
struct RopeConfig {
  std::vector<float> inverse_frequencies;  // [rotated dimensions / 2]
  double attention_factor = 1;             // multiplies cos and sin
  bool interleaved = false;                // pairs are (2i, 2i+1) instead of (i, i + R/2)
  RopeParameters parameters;               // what they come from
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// Where RMS norms on queries and keys stand.
enum class QkNorm : uint8_t {
  kNone,
  kPerHead,  // over each head's values, weights shared by the heads (Qwen3)
};

struct LayerConfig {
  int32_t window = kNoWindow;  // keys that a query sees, itself included
  int rope = 0;                // index into ModelConfig::ropes
};

struct ModelConfig {
  std::string model_type;    // as in config.json: "llama"
  std::string architecture;  // the class named there: "LlamaForCausalLM"
  int64_t vocab_size = 0;    // rows of the embedding
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;  // 0: not stated

  std::string activation = "silu";  // of the gated MLP, see ops/activation.h
  double rms_norm_eps = 1e-6;
  double norm_offset = 0;                 // added to norm weights
  bool norm_rounds_before_weight = true;  // see ops/norm.h
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  double attention_scale = 1;    // of the scores, already resolved
  double attention_softcap = 0;  // 0: none
  double final_softcap = 0;
  double embedding_scale = 1;
  bool tie_word_embeddings = false;

  std::vector<LayerConfig> layers;
  std::vector<RopeConfig> ropes;

  int64_t bos_token_id = -1;  // -1: none
  std::vector<int64_t> eos_token_ids;
  StoredQuantization quantization;  // of a Hugging Face folder's weights
  std::vector<std::string> notes;   // what a reader should tell the user

  int64_t query_width() const { return num_attention_heads * head_dim; }
  int64_t key_value_width() const { return num_key_value_heads * head_dim; }
};

// Reads `path`: a folder with config.json, or a .gguf file. Raises Error for an unknown family, for
// a field that would change the result and is not supported, and for values that contradict each
// other.
ModelConfig read_model_config(const std::filesystem::path& path);
// The text of a config.json; `name` stands for the path in errors.
ModelConfig parse_model_config(std::string_view text, const std::string& name);

bool is_gguf(const std::filesystem::path& path);  // by its ending

}  // namespace graft
