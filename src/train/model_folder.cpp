#include "train/model_folder.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "models/layout.h"

namespace graft {
namespace {

constexpr size_t kShardBytes = 5'000'000'000;

// Files of a source folder that describe it besides its weights.
constexpr const char* kCarriedFiles[] = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "LICENSE",
    "LICENSE.txt",
};

const char* torch_name(DType dtype) {
  return dtype == DType::kF16 ? "float16" : dtype == DType::kBF16 ? "bfloat16" : "float32";
}

// `rope_scaling` of a config.json.
nlohmann::ordered_json describe_rope(const RopeConfig& rope, const std::string& source) {
  const RopeParameters& p = rope.parameters;
  if (p.type == "default") return nullptr;
  if (p.type == kUnnamedRope) {
    throw Error("its rotary frequencies are of no type that a config.json can name", source,
                "export a GGUF file, or merge onto the Hugging Face folder of this model");
  }
  nlohmann::ordered_json j = {{"rope_type", p.type}, {"factor", p.factor}};
  if (p.type == "linear") return j;
  j["original_max_position_embeddings"] =
      static_cast<int64_t>(std::llround(p.original_max_position_embeddings));
  if (p.type == "llama3") {
    j["low_freq_factor"] = p.low_freq_factor;
    j["high_freq_factor"] = p.high_freq_factor;
  } else if (p.attention_factor) {
    j["attention_factor"] = *p.attention_factor;
  }
  return j;
}

// An f32 as the number that somebody wrote: 1e-05, not 9.999999747378752e-06.
double short_number(double value) { return std::stod(fmt::format("{:.6g}", value)); }

// config.json for a model that came without one.
nlohmann::ordered_json describe(const ModelConfig& c, const std::string& source, DType dtype) {
  const RopeConfig& rope = c.ropes[0];
  nlohmann::ordered_json j = {
      {"architectures", {c.architecture}},
      {"model_type", c.model_type},
      {"vocab_size", c.vocab_size},
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"num_hidden_layers", c.layers.size()},
      {"num_attention_heads", c.num_attention_heads},
      {"num_key_value_heads", c.num_key_value_heads},
      {"head_dim", c.head_dim},
      {"hidden_act", "silu"},
      {"rms_norm_eps", short_number(c.rms_norm_eps)},
      {"rope_theta", rope.parameters.theta},
      {"rope_scaling", describe_rope(rope, source)},
      {"attention_bias", c.model_type == "qwen2" ? false : c.qkv_bias},
      {"tie_word_embeddings", c.tie_word_embeddings},
      {"torch_dtype", torch_name(dtype)},
  };
  if (c.max_position_embeddings > 0) j["max_position_embeddings"] = c.max_position_embeddings;
  if (c.model_type == "llama") j["mlp_bias"] = c.mlp_bias;
  if (c.bos_token_id >= 0) j["bos_token_id"] = c.bos_token_id;
  if (!c.eos_token_ids.empty()) j["eos_token_id"] = c.eos_token_ids[0];
  return j;
}

void write_tokenizer_files(const std::filesystem::path& folder, const TextModel& text) {
  write_file_atomically(folder / "tokenizer.json", text.tokenizer_json);
  nlohmann::ordered_json j = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                              {"clean_up_tokenization_spaces", false},
                              {"add_bos_token", text.adds_bos},
                              {"add_eos_token", text.adds_eos}};
  for (const auto& [name, token] : text.special_tokens) j[name] = token;
  if (text.chat_template) j["chat_template"] = text.chat_template->source();
  write_file_atomically(folder / "tokenizer_config.json", j.dump(2) + "\n");
}

// generation_config.json of a GGUF: what ends a reply.
void write_generation_config(const std::filesystem::path& folder, const TextModel& text) {
  nlohmann::ordered_json j = {{"_from_model_config", true}};
  if (text.bos_id) j["bos_token_id"] = *text.bos_id;
  if (text.stop_ids.size() == 1) j["eos_token_id"] = text.stop_ids[0];
  else if (!text.stop_ids.empty()) j["eos_token_id"] = text.stop_ids;
  if (text.pad_id) j["pad_token_id"] = *text.pad_id;
  write_file_atomically(folder / "generation_config.json", j.dump(2) + "\n");
}

// The files beside the weights; a config.json states the type of the weights, which may be another
// one now.
void carry_over(const std::filesystem::path& from, const std::filesystem::path& to,
                std::optional<DType> dtype) {
  for (const char* name : kCarriedFiles) {
    if (!std::filesystem::exists(from / name)) continue;
    std::string text = read_text_file(from / name);
    if (dtype && std::string_view(name) == "config.json") {
      auto config = nlohmann::ordered_json::parse(text);
      config[config.contains("dtype") ? "dtype" : "torch_dtype"] = torch_name(*dtype);
      text = config.dump(2) + "\n";
    }
    write_file_atomically(to / name, text);
  }
}

// The same document with another account of its quantisation, or none.
std::string with_quantization(const std::filesystem::path& config,
                              const std::string& quantization_config) {
  nlohmann::ordered_json j = nlohmann::ordered_json::parse(read_text_file(config));
  j.erase("quantization_config");
  if (!quantization_config.empty()) {
    j["quantization_config"] = nlohmann::ordered_json::parse(quantization_config);
  }
  return j.dump(2) + "\n";
}

struct Shard {
  std::vector<SafetensorsDeclaration> tensors;
  size_t bytes = 0;
};

std::vector<Shard> split_into_shards(const std::vector<SafetensorsDeclaration>& tensors) {
  std::vector<Shard> shards(1);
  for (const SafetensorsDeclaration& t : tensors) {
    const size_t bytes = dtype_bytes(t.dtype, static_cast<size_t>(element_count(t.shape)));
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > kShardBytes) shards.emplace_back();
    shards.back().tensors.push_back(t);
    shards.back().bytes += bytes;
  }
  return shards;
}

}  // namespace

void write_description(const std::filesystem::path& folder, const std::filesystem::path& source,
                       const ModelConfig& config, const TextModel* text, std::optional<DType> dtype,
                       const std::string& quantization_config) {
  make_directories(folder);
  const std::filesystem::path target = folder / "config.json";
  if (is_gguf(source)) {
    const DType written = dtype.value_or(DType::kF32);
    write_file_atomically(target, describe(config, source.string(), written).dump(2) + "\n");
    if (text != nullptr) {
      write_tokenizer_files(folder, *text);
      write_generation_config(folder, *text);
    }
  } else {
    carry_over(source, folder, dtype);
  }
  const bool was_quantized = config.quantization.method != StoredQuantization::Method::kNone;
  if (was_quantized || !quantization_config.empty()) {
    write_file_atomically(target, with_quantization(target, quantization_config));
  }
}

void write_shards(const std::filesystem::path& folder,
                  const std::vector<SafetensorsDeclaration>& tensors,
                  const std::function<Tensor(const std::string& name)>& value) {
  const std::vector<Shard> shards = split_into_shards(tensors);
  nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}},
                                  {"weight_map", nlohmann::ordered_json::object()}};
  size_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shards.size() == 1 ? std::string("model.safetensors")
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    SafetensorsWriter writer(folder / name, shards[i].tensors, {{"format", "pt"}});
    for (const SafetensorsDeclaration& t : shards[i].tensors) {
      writer.add(t.name, value(t.name).as(t.dtype));
      index["weight_map"][t.name] = name;
    }
    writer.commit();
    total += shards[i].bytes;
  }
  if (shards.size() > 1) {
    index["metadata"]["total_size"] = total;
    write_file_atomically(folder / "model.safetensors.index.json", index.dump(2) + "\n");
  }
}

void save_model_folder(const std::filesystem::path& folder, const ModelState& state,
                       const TextModel* text,
                       const std::function<Tensor(const std::string& name)>& value,
                       std::optional<DType> dtype) {
  write_description(folder, state.path, state.config, text, dtype);
  // The stored types, which `state` may hold converted; of a quantised folder, the embedding's.
  const BaseWeights weights = BaseWeights::open(state.path, state.config);
  const bool quantized = state.config.quantization.method != StoredQuantization::Method::kNone;
  std::vector<SafetensorsDeclaration> tensors;
  for (const VariableSpec& v : weights.parameters()) {
    const bool packed = quantized && weights.packed(v.name).has_value();
    const DType stored = packed ? weights.parameters()[0].dtype : v.dtype;
    tensors.push_back({v.name, dtype.value_or(stored), v.shape});
  }
  write_shards(folder, tensors, value);
}

}  // namespace graft
