#include "models/config.h"

#include <cmath>

#include "base/file.h"
#include "formats/gguf.h"
#include "models/config_reader.h"
#include "models/families.h"

namespace graft {
namespace {

std::string known_families() {
  std::string names;
  for (const Family& family : families()) {
    names += (names.empty() ? "" : ", ") + std::string(family.model_type);
  }
  return "supported families: " + names;
}

// Checks what every family needs, once all fields are read.
void validate(const ModelConfig& config, const std::string& where) {
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    throw Error(fmt::format("{} attention heads cannot share {} key/value heads",
                            config.num_attention_heads, config.num_key_value_heads),
                where);
  }
  if (!(config.rms_norm_eps > 0)) {
    throw Error(fmt::format("rms_norm_eps must be positive, not {}", config.rms_norm_eps), where);
  }
  for (const RopeConfig& rope : config.ropes) {
    if (static_cast<int64_t>(rope.inverse_frequencies.size()) * 2 > config.head_dim) {
      throw Error("more rotary frequencies than half the head size", where);
    }
  }
}

std::vector<int64_t> one_or_many(const nlohmann::json* value) {
  if (value == nullptr || value->is_null()) return {};
  if (value->is_number_integer()) return {value->get<int64_t>()};
  std::vector<int64_t> ids;
  if (value->is_array()) {
    for (const auto& item : *value) {
      if (item.is_number_integer()) ids.push_back(item.get<int64_t>());
    }
  }
  return ids;
}

std::string read_activation(ConfigReader& reader) {
  const std::string name = reader.find<std::string>("hidden_act").value_or("silu");
  if (name == "silu" || name == "swish") return "silu";
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return "gelu_tanh";
  if (name == "gelu") return "gelu";
  reader.object().fail("hidden_act", fmt::format("\"{}\" is not supported", name),
                       "supported are silu, gelu and gelu_pytorch_tanh");
}

}  // namespace

ModelConfig parse_model_config(std::string_view text, const std::string& name) {
  const nlohmann::json document = parse_json(text, name);
  ConfigReader reader(JsonObject(document, name));
  ModelConfig config;
  config.model_type = reader.get<std::string>("model_type");
  const Family* family = find_family(config.model_type);
  if (family == nullptr) {
    reader.object().fail("model_type", fmt::format("\"{}\" is not supported", config.model_type),
                         known_families());
  }
  config.architecture = family->class_name;
  config.vocab_size = reader.extent("vocab_size");
  config.hidden_size = reader.extent("hidden_size");
  config.intermediate_size = reader.extent("intermediate_size");
  config.num_attention_heads = reader.extent("num_attention_heads");
  config.num_key_value_heads =
      reader.find_extent("num_key_value_heads").value_or(config.num_attention_heads);
  if (const auto head_dim = reader.find_extent("head_dim")) {
    config.head_dim = *head_dim;
  } else if (config.hidden_size % config.num_attention_heads != 0) {
    reader.object().fail("hidden_size",
                         "is not a multiple of num_attention_heads, and there is no head_dim");
  } else {
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  config.max_position_embeddings = reader.find_extent("max_position_embeddings").value_or(0);
  config.activation = read_activation(reader);
  config.rms_norm_eps = reader.find<double>("rms_norm_eps").value_or(1e-6);
  config.tie_word_embeddings = reader.find<bool>("tie_word_embeddings").value_or(false);
  config.attention_scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  const int64_t layers = reader.extent("num_hidden_layers");
  if (layers > 4096) reader.object().fail("num_hidden_layers", "is more than 4096");
  config.layers.resize(static_cast<size_t>(layers));
  config.ropes = {resolve_rope(reader.rope(10000), config.head_dim, name)};
  reader.require_neutral("attention_dropout", 0.0);
  reader.note_read("quantization_config");
  config.quantization = read_stored_quantization(reader.object());
  family->read(reader, config);

  const std::vector<int64_t> bos = one_or_many(reader.object().find("bos_token_id"));
  if (!bos.empty()) config.bos_token_id = bos[0];
  config.eos_token_ids = one_or_many(reader.object().find("eos_token_id"));
  for (const std::string& name : reader.unread()) {
    config.notes.push_back(
        fmt::format("{}: field \"{}\" is not known to graft and is passed over", name, name));
  }
  validate(config, name);
  return config;
}

namespace {

// GGUF files state scaling under <architecture>.rope.scaling.*, and llama3's as a tensor of
// divisors.
RopeConfig read_gguf_rope(const GgufFile& file, const std::string& architecture,
                          int64_t dimensions) {
  const std::string prefix = architecture + ".rope.";
  RopeParameters p;
  p.theta = file.find_f32(prefix + "freq_base").value_or(10000.0F);
  const std::string scaling = file.find_string(prefix + "scaling.type").value_or("none");
  const auto factor = file.find_f32(prefix + "scaling.attn_factor");
  if (scaling != "none") {
    p.type = scaling;
    p.factor = file.find_f32(prefix + "scaling.factor").value_or(1.0F);
    p.original_max_position_embeddings =
        file.find_u32(prefix + "scaling.original_context_length").value_or(0);
    // Here the factor multiplies YaRN's own.
    if (factor && p.type == "yarn") p.attention_factor = *factor * yarn_magnitude(p.factor);
  }
  RopeConfig rope = resolve_rope(p, dimensions, file.name() + ": " + prefix + "scaling.type");
  if (factor && p.type != "yarn") rope.attention_factor = *factor;
  if (const GgufTensor* divisors = file.find("rope_freqs.weight")) {
    const Tensor values = file.dequantize(*divisors);
    if (values.elements() != dimensions / 2) {
      throw Error(fmt::format("tensor \"rope_freqs.weight\" has {} values for {} frequencies",
                              values.elements(), dimensions / 2),
                  file.name());
    }
    for (size_t i = 0; i < rope.inverse_frequencies.size(); ++i) {
      const float divisor = values.data<float>()[i];
      if (!(divisor > 0) || !std::isfinite(divisor)) {
        throw Error(fmt::format("tensor \"rope_freqs.weight\" holds {}", divisor), file.name());
      }
      rope.inverse_frequencies[i] /= divisor;
    }
    const auto found = p.type == "default" && rope.attention_factor == 1
                           ? find_llama3_parameters(p.theta, rope.inverse_frequencies)
                           : std::nullopt;
    if (found) rope.parameters = *found;
    else rope.parameters.type = kUnnamedRope;
  } else if (rope.attention_factor != 1 && p.type != "yarn") {
    rope.parameters.type = kUnnamedRope;
  }
  return rope;
}

ModelConfig read_gguf_config(const std::filesystem::path& path) {
  const GgufFile file = GgufFile::open(path);
  const std::string architecture = file.get_string("general.architecture");
  const Family* family = find_gguf_family(architecture);
  if (family == nullptr) {
    throw Error(fmt::format("architecture \"{}\" is not supported", architecture), path.string(),
                known_families());
  }
  const auto extent = [&](const std::string& key) {
    const int64_t value = file.get_u32(architecture + "." + key);
    if (value <= 0) throw Error(fmt::format("{}.{} is 0", architecture, key), path.string());
    return value;
  };
  ModelConfig config;
  config.model_type = family->model_type;
  config.architecture = family->class_name;
  config.hidden_size = extent("embedding_length");
  config.intermediate_size = extent("feed_forward_length");
  config.num_attention_heads = extent("attention.head_count");
  config.num_key_value_heads = file.find_u32(architecture + ".attention.head_count_kv")
                                   .value_or(static_cast<uint32_t>(config.num_attention_heads));
  if (config.num_key_value_heads <= 0) throw Error("attention.head_count_kv is 0", path.string());
  config.head_dim = file.find_u32(architecture + ".attention.key_length").value_or(0);
  if (config.head_dim == 0) config.head_dim = config.hidden_size / config.num_attention_heads;
  config.max_position_embeddings = file.find_u32(architecture + ".context_length").value_or(0);
  config.rms_norm_eps = file.get_f32(architecture + ".attention.layer_norm_rms_epsilon");
  config.attention_scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  const int64_t layers = extent("block_count");
  if (layers > 4096) throw Error("more than 4096 layers", path.string());
  config.layers.resize(static_cast<size_t>(layers));
  if (file.find_u32(architecture + ".expert_count").value_or(0) > 0) {
    throw Error("a mixture of experts is not supported in GGUF files", path.string());
  }
  if (file.find_u32(architecture + ".attention.sliding_window").value_or(0) > 0) {
    throw Error(architecture + ".attention.sliding_window is not supported", path.string());
  }

  const GgufTensor& embedding = file.tensor("token_embd.weight");
  if (embedding.shape.size() != 2)
    throw Error("tensor \"token_embd.weight\" is not a matrix", path.string());
  config.vocab_size = embedding.shape[0];
  config.tie_word_embeddings = file.find("output.weight") == nullptr;
  config.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
  config.o_bias = file.find("blk.0.attn_output.bias") != nullptr;
  config.mlp_bias = file.find("blk.0.ffn_gate.bias") != nullptr;
  if (file.find("blk.0.attn_q_norm.weight") != nullptr) config.qk_norm = QkNorm::kPerHead;
  const int64_t rotated = file.find_u32(architecture + ".rope.dimension_count")
                              .value_or(static_cast<uint32_t>(config.head_dim));
  if (rotated != config.head_dim) {
    throw Error(fmt::format("rotates {} of {} dimensions of a head, which is not supported",
                            rotated, config.head_dim),
                path.string());
  }
  config.ropes = {read_gguf_rope(file, architecture, rotated)};
  if (const auto bos = file.find_u32("tokenizer.ggml.bos_token_id")) config.bos_token_id = *bos;
  if (const auto eos = file.find_u32("tokenizer.ggml.eos_token_id")) config.eos_token_ids = {*eos};
  validate(config, path.string());
  return config;
}

}  // namespace

bool is_gguf(const std::filesystem::path& path) { return path.extension() == ".gguf"; }

ModelConfig read_model_config(const std::filesystem::path& path) {
  if (is_gguf(path)) return read_gguf_config(path);
  const std::filesystem::path file = path / "config.json";
  if (!std::filesystem::exists(path)) {
    throw Error("there is no such model", path.string(),
                "give a Hugging Face folder or a .gguf file");
  }
  if (!std::filesystem::is_directory(path)) {
    throw Error("this is neither a folder nor a .gguf file", path.string(),
                "give a Hugging Face folder or a .gguf file");
  }
  if (!std::filesystem::exists(file)) {
    throw Error("the folder has no config.json", path.string(),
                "give a Hugging Face folder or a .gguf file");
  }
  return parse_model_config(read_text_file(file), file.string());
}

}  // namespace graft
