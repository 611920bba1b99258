#include "models/config_reader.h"

namespace graft {

int64_t ConfigReader::extent(const std::string& key) {
  const auto value = find_extent(key);
  if (!value) object_.fail(key, "is missing");
  return *value;
}

std::optional<int64_t> ConfigReader::find_extent(const std::string& key) {
  const auto value = find<int64_t>(key);
  if (value && (*value <= 0 || *value > (int64_t{1} << 31))) {
    object_.fail(key, fmt::format("must be between 1 and 2^31, not {}", *value));
  }
  return value;
}

void ConfigReader::require_neutral(const std::string& key, const nlohmann::json& neutral) {
  used_.insert(key);
  const nlohmann::json* value = object_.find(key);
  if (value == nullptr || value->is_null() || *value == neutral) return;
  object_.fail(key,
               fmt::format("is {}, which changes the result and is not supported", value->dump()),
               fmt::format("only {} is", neutral.dump()));
}

namespace {

// Reads a number and marks the key as known.
void read_number(const JsonObject& object, const char* key, std::set<std::string>& known,
                 double& value) {
  known.insert(key);
  if (const auto given = object.optional<double>(key)) value = *given;
}

}  // namespace

void ConfigReader::read_rope_scaling(const JsonObject& scaling, RopeParameters& p) {
  std::set<std::string> known{"rope_type", "type"};
  if (const auto type = scaling.optional<std::string>("rope_type")) {
    p.type = *type;
  } else if (const auto old = scaling.optional<std::string>("type")) {
    p.type = *old;
  }
  if (p.type != "default" && p.type != "linear" && p.type != "llama3" && p.type != "yarn") {
    scaling.fail("rope_type", fmt::format("\"{}\" is not supported", p.type),
                 "supported are default, linear, llama3 and yarn");
  }
  read_number(scaling, "rope_theta", known, p.theta);
  read_number(scaling, "factor", known, p.factor);
  read_number(scaling, "low_freq_factor", known, p.low_freq_factor);
  read_number(scaling, "high_freq_factor", known, p.high_freq_factor);
  read_number(scaling, "original_max_position_embeddings", known,
              p.original_max_position_embeddings);
  read_number(scaling, "beta_fast", known, p.beta_fast);
  read_number(scaling, "beta_slow", known, p.beta_slow);
  read_number(scaling, "mscale", known, p.mscale);
  read_number(scaling, "mscale_all_dim", known, p.mscale_all_dim);
  for (const char* key : {"truncate", "attention_factor"}) known.insert(key);
  p.truncate = scaling.optional<bool>("truncate").value_or(true);
  p.attention_factor = scaling.optional<double>("attention_factor");
  if ((p.type == "linear" || p.type == "llama3" || p.type == "yarn") && !scaling.has("factor")) {
    scaling.fail("factor", fmt::format("is missing; rope type \"{}\" needs it", p.type));
  }
  if (p.type == "llama3") {
    for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
      if (!scaling.has(key)) scaling.fail(key, "is missing; rope type \"llama3\" needs it");
    }
  }
  known.insert("partial_rotary_factor");
  if (const auto partial = scaling.optional<double>("partial_rotary_factor");
      partial && *partial != 1) {
    scaling.fail("partial_rotary_factor", "is not supported for this family");
  }
  for (const std::string& key : scaling.keys()) {
    if (!known.contains(key)) scaling.fail(key, "is not a rope parameter that graft knows");
  }
}

RopeParameters ConfigReader::rope(double default_theta) {
  RopeParameters p;
  p.theta = default_theta;
  for (const char* key : {"rope_parameters", "rope_scaling", "rope_theta"}) used_.insert(key);
  if (const auto theta = object_.optional<double>("rope_theta")) p.theta = *theta;
  if (const auto parameters = object_.optional_object("rope_parameters")) {
    read_rope_scaling(*parameters, p);
  } else if (const auto scaling = object_.optional_object("rope_scaling")) {
    read_rope_scaling(*scaling, p);
  }
  if (p.original_max_position_embeddings == 0) {
    const auto original = find<double>("original_max_position_embeddings");
    p.original_max_position_embeddings =
        original ? *original
                 : static_cast<double>(find<int64_t>("max_position_embeddings").value_or(0));
  }
  return p;
}

std::vector<bool> ConfigReader::layer_types(int64_t layers) {
  const auto types = find<std::vector<std::string>>("layer_types");
  if (!types) return {};
  if (static_cast<int64_t>(types->size()) != layers) {
    object_.fail("layer_types", fmt::format("has {} entries for {} layers", types->size(), layers));
  }
  std::vector<bool> sliding;
  for (const std::string& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      object_.fail("layer_types", fmt::format("\"{}\" is not supported", type),
                   "supported are full_attention and sliding_attention");
    }
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

namespace {

// Fields that say nothing about what the model computes.
const std::set<std::string>& descriptive_fields() {
  static const std::set<std::string> fields{
      "_name_or_path",
      "_attn_implementation",
      "_attn_implementation_autoset",
      "architectures",
      "auto_map",
      "torch_dtype",
      "dtype",
      "transformers_version",
      "transformers.js_config",
      "use_cache",
      "initializer_range",
      "bos_token_id",
      "eos_token_id",
      "pad_token_id",
      "unk_token_id",
      "sep_token_id",
      "cls_token_id",
      "decoder_start_token_id",
      "model_type",
      "max_position_embeddings",
      "task_specific_params",
      "id2label",
      "label2id",
      "problem_type",
      "return_dict",
      "output_attentions",
      "output_hidden_states",
      "torchscript",
      "is_decoder",
      "is_encoder_decoder",
      "license",
      "license_name",
      "license_link",
      "rope_interleaved",
      "max_length",
      "min_length",
      "do_sample",
      "temperature",
      "top_k",
      "top_p",
      "num_beams",
      "unsloth_fixed",
      "unsloth_version",
      "is_llama_config",
      "vocab_size",
      "hidden_size",
      "use_bfloat16",
      "chunk_size_feed_forward",
      "name_or_path",
      "tokenizer_class",
  };
  return fields;
}

bool says_nothing(const nlohmann::json& value) {
  return value.is_null() || value == false || value == 0 || value == "" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

}  // namespace

std::vector<std::string> ConfigReader::unread() const {
  std::vector<std::string> names;
  for (const std::string& key : object_.keys()) {
    if (used_.contains(key) || descriptive_fields().contains(key)) continue;
    if (!says_nothing(*object_.find(key))) names.push_back(key);
  }
  return names;
}

}  // namespace graft
