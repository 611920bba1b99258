// A configuration as GGUF metadata and back: the same model, scaled rotary frequencies included.

#include "models/gguf_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "models/layout.h"
#include "models/rope_scaling.h"
#include "models/weights.h"
#include "support/errors.h"
#include "support/temporary.h"
#include "support/tiny_model.h"

namespace graft {
namespace {

using nlohmann::json;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

ModelConfig config_of(const json& document) {
  return parse_model_config(document.dump(), "config.json");
}

// Writes a GGUF file of random weights and gives the configuration that is read from it.
ModelConfig through_gguf(const ModelConfig& config, const std::filesystem::path& path) {
  GgufMetadata metadata;
  write_gguf_config(config, metadata);
  std::vector<GgufDeclaration> tensors;
  const auto divisors = gguf_rope_divisors(config);
  if (divisors) tensors.push_back({"rope_freqs.weight", GgmlType::kF32, divisors->shape()});
  for (const VariableSpec& v : base_parameters(config)) {
    tensors.push_back({gguf_tensor_name(v.name), GgmlType::kF32, v.shape});
  }
  GgufWriter writer(path, metadata, tensors);
  if (divisors) writer.add("rope_freqs.weight", *divisors);
  for (const VariableSpec& v : base_parameters(config)) {
    Tensor t = Tensor::empty(DType::kF32, v.shape);
    Philox random(1, fnv1a_32(v.name));
    for (int64_t i = 0; i < t.elements(); ++i) {
      t.data<float>()[i] = static_cast<float>(random.normal());
    }
    writer.add(gguf_tensor_name(v.name), to_gguf_rows(config, v.name, t));
  }
  writer.commit();
  return read_model_config(path);
}

void expect_same_rope(const RopeConfig& found, const RopeConfig& expected) {
  ASSERT_EQ(found.inverse_frequencies.size(), expected.inverse_frequencies.size());
  for (size_t i = 0; i < expected.inverse_frequencies.size(); ++i) {
    EXPECT_NEAR(found.inverse_frequencies[i], expected.inverse_frequencies[i],
                3e-7 * expected.inverse_frequencies[i])
        << i;
  }
  EXPECT_NEAR(found.attention_factor, expected.attention_factor, 1e-6);
}

TEST(GgufLayout, ConfigurationAndWeightsSurvive) {
  const TemporaryFolder folder;
  json document = testing::tiny_config();
  for (const bool tied : {false, true}) {
    for (const char* family : {"llama", "qwen2", "qwen3"}) {
      document["model_type"] = family;
      document["tie_word_embeddings"] = tied;
      document["head_dim"] = 16;  // not hidden_size / heads
      const ModelConfig config = config_of(document);
      const auto path = folder / (std::string(family) + ".gguf");
      const ModelConfig again = through_gguf(config, path);
      EXPECT_EQ(again.model_type, family);
      EXPECT_EQ(again.tie_word_embeddings, tied);
      EXPECT_EQ(again.head_dim, 16);
      EXPECT_EQ(again.intermediate_size, config.intermediate_size);
      EXPECT_EQ(again.num_key_value_heads, config.num_key_value_heads);
      EXPECT_EQ(again.qkv_bias, config.qkv_bias);
      EXPECT_EQ(again.qk_norm, config.qk_norm);
      EXPECT_FLOAT_EQ(static_cast<float>(again.rms_norm_eps),
                      static_cast<float>(config.rms_norm_eps));
      EXPECT_EQ(again.max_position_embeddings, config.max_position_embeddings);
      expect_same_rope(again.ropes[0], config.ropes[0]);
      // Rows come back in their order.
      const BaseWeights weights = BaseWeights::open(path, again);
      for (const VariableSpec& v : base_parameters(config)) {
        Philox random(1, fnv1a_32(v.name));
        const Tensor t = weights.load(v.name, DType::kF32);
        for (int64_t i = 0; i < t.elements(); ++i) {
          ASSERT_EQ(t.data<float>()[i], static_cast<float>(random.normal())) << v.name;
        }
      }
    }
  }
}

// llama.cpp's files interleave the halves of each head of q and k; nothing else moves.
TEST(GgufLayout, RowsOfQueriesAndKeysInterleave) {
  const ModelConfig config = config_of(testing::tiny_config());  // 4 heads of 8, 2 of keys
  Tensor rows = Tensor::empty(DType::kF32, {32, 1});
  for (int64_t i = 0; i < 32; ++i) rows.data<float>()[i] = static_cast<float>(i);
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  const Tensor stored = to_gguf_rows(config, q, rows);
  const std::vector<float> first_head(stored.data<float>(), stored.data<float>() + 8);
  EXPECT_THAT(first_head, ::testing::ElementsAre(0, 4, 1, 5, 2, 6, 3, 7));
  EXPECT_EQ(stored.data<float>()[8], 8);
  const Tensor back = from_gguf_rows(config, q, stored);
  for (int64_t i = 0; i < 32; ++i) EXPECT_EQ(back.data<float>()[i], static_cast<float>(i));
  const Tensor same = to_gguf_rows(config, "model.layers.0.self_attn.v_proj.weight", rows);
  EXPECT_EQ(same.data<float>()[1], 1);
}

json scaled(const json& rope, const char* family = "llama") {
  json document = testing::tiny_config(1);
  document["model_type"] = family;
  document["hidden_size"] = 256;  // heads of 64
  document["rope_theta"] = 500000.0;
  document["max_position_embeddings"] = 131072;
  document["rope_scaling"] = rope;
  return document;
}

const json kLlama3 = {{"rope_type", "llama3"},
                      {"factor", 32.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 8192}};
const json kYarn = {
    {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};

TEST(GgufLayout, ScaledRotaryFrequenciesSurvive) {
  const TemporaryFolder folder;
  json slow_yarn = kYarn;
  slow_yarn["beta_fast"] = 16.0;
  slow_yarn["truncate"] = false;
  json loud_yarn = kYarn;
  loud_yarn["attention_factor"] = 1.5;
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"rope_type", "linear"}, {"factor", 8.0}}, "linear"},
      {kLlama3, "llama3"},
      {kYarn, "yarn"},
      {loud_yarn, "yarn"},
      {slow_yarn, kUnnamedRope}};
  for (const auto& [rope, type] : cases) {
    const ModelConfig config = config_of(scaled(rope));
    const ModelConfig again = through_gguf(config, folder / "x.gguf");
    expect_same_rope(again.ropes[0], config.ropes[0]);
    EXPECT_EQ(again.ropes[0].parameters.type, type);
  }
}

TEST(GgufLayout, Llama3ParametersAreFoundFromFrequencies) {
  const RopeConfig rope = config_of(scaled(kLlama3)).ropes[0];
  const auto found = find_llama3_parameters(500000, rope.inverse_frequencies);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->factor, 32);
  EXPECT_EQ(found->high_freq_factor, 4);
  EXPECT_EQ(found->original_max_position_embeddings, 8192);
  // Frequencies of another kind are none of llama3's.
  EXPECT_FALSE(
      find_llama3_parameters(500000, config_of(scaled(kYarn)).ropes[0].inverse_frequencies));
  EXPECT_FALSE(find_llama3_parameters(500000, unscaled_frequencies(500000, 64)));
}

TEST(GgufLayout, RefusesWhatFilesCannotState) {
  const auto error = [](const json& document) {
    return error_of([&] {
      GgufMetadata metadata;
      write_gguf_config(config_of(document), metadata);
    });
  };
  json mistral = testing::tiny_config();
  mistral["model_type"] = "mistral";
  EXPECT_EQ(error(mistral), "");
  mistral["sliding_window"] = 12;
  EXPECT_THAT(error(mistral), HasSubstr("sliding window of 12"));
  mistral["sliding_window"] = 4096;  // longer than the context: it hides nothing
  EXPECT_EQ(error(mistral), "");
  EXPECT_THAT(error(scaled(kLlama3, "qwen2")), HasSubstr("rotary scaling of type llama3"));
  EXPECT_EQ(error(scaled(kYarn, "qwen2")), "");
  json gelu = testing::tiny_config();
  gelu["hidden_act"] = "gelu";
  EXPECT_THAT(error(gelu), HasSubstr("gelu"));
}

}  // namespace
}  // namespace graft
