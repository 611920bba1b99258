#include "train/model_folder.h"

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
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "LICENSE",
    "LICENSE.txt",
};

// config.json for a model that came without one. Rotary scaling that a GGUF states as bare
// frequencies has no name to be written under.
nlohmann::ordered_json describe(const ModelConfig& c, const std::string& source) {
  const RopeConfig& rope = c.ropes[0];
  if (rope.scaled) {
    throw Error("its scaled rotary frequencies cannot be written to a config.json", source,
                "merge onto the Hugging Face folder of this model instead");
  }
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
      {"rms_norm_eps", std::stod(fmt::format("{:.6g}", c.rms_norm_eps))},
      {"rope_theta", rope.theta},
      {"rope_scaling", nullptr},
      {"attention_bias", c.model_type == "qwen2" ? false : c.qkv_bias},
      {"tie_word_embeddings", c.tie_word_embeddings},
      {"torch_dtype", "float32"},
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

void carry_over(const std::filesystem::path& from, const std::filesystem::path& to) {
  write_file_atomically(to, read_text_file(from));
}

struct Shard {
  std::vector<SafetensorsDeclaration> tensors;
  size_t bytes = 0;
};

std::vector<Shard> split_into_shards(const std::vector<VariableSpec>& parameters) {
  std::vector<Shard> shards(1);
  for (const VariableSpec& v : parameters) {
    const size_t bytes = dtype_bytes(v.dtype, static_cast<size_t>(element_count(v.shape)));
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > kShardBytes) shards.emplace_back();
    shards.back().tensors.push_back({v.name, v.dtype, v.shape});
    shards.back().bytes += bytes;
  }
  return shards;
}

}  // namespace

void save_model_folder(const std::filesystem::path& folder, const ModelState& state,
                       const TextModel* text,
                       const std::function<Tensor(const std::string& name)>& value) {
  make_directories(folder);
  if (is_gguf(state.path)) {
    write_file_atomically(folder / "config.json",
                          describe(state.config, state.path.string()).dump(2) + "\n");
    if (text != nullptr) write_tokenizer_files(folder, *text);
  } else {
    for (const char* name : kCarriedFiles) {
      if (std::filesystem::exists(state.path / name)) carry_over(state.path / name, folder / name);
    }
  }
  // The stored types, which `state` may hold converted.
  const std::vector<VariableSpec> stored = BaseWeights::open(state.path, state.config).parameters();
  const std::vector<Shard> shards = split_into_shards(stored);
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

Tensor merged_parameter(const ModelState& state, const std::string& name) {
  const Tensor& base = state.tensors.at(name);
  if (!name.ends_with(".weight")) return base;
  const std::string module = name.substr(0, name.size() - 7);
  const auto site = state.adapter.sites.find(module);
  if (site == state.adapter.sites.end()) return base;
  const Tensor& a = state.tensors.at(module + ".lora_A");
  const Tensor& b = state.tensors.at(module + ".lora_B");
  Tensor merged = base.as(DType::kF32).clone();
  const int64_t out = merged.shape()[0], in = merged.shape()[1], rank = a.shape()[0];
  std::vector<double> row(static_cast<size_t>(in));
  for (int64_t o = 0; o < out; ++o) {
    std::fill(row.begin(), row.end(), 0.0);
    for (int64_t k = 0; k < rank; ++k) {
      const double factor = site->second.scale * static_cast<double>(b.data<float>()[o * rank + k]);
      const float* a_row = a.data<float>() + k * in;
      for (int64_t i = 0; i < in; ++i)
        row[static_cast<size_t>(i)] += factor * static_cast<double>(a_row[i]);
    }
    float* w = merged.data<float>() + o * in;
    for (int64_t i = 0; i < in; ++i) {
      w[i] = static_cast<float>(static_cast<double>(w[i]) + row[static_cast<size_t>(i)]);
    }
  }
  return merged;
}

}  // namespace graft
