#include "models/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/temporary.h"

namespace graft {
namespace {

using nlohmann::json;

json llama() {
  return {{"model_type", "llama"},
          {"vocab_size", 32},
          {"hidden_size", 16},
          {"intermediate_size", 24},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"num_hidden_layers", 3},
          {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", true},
          {"rope_theta", 10000.0},
          {"max_position_embeddings", 64}};
}

ModelConfig read(const json& document) {
  const testing::TemporaryFolder folder;
  write_file_atomically(folder / "config.json", document.dump());
  return read_model_config(folder.path());
}

std::string refusal(const json& document) {
  try {
    read(document);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

json with(json document, const json& changes) {
  document.update(changes);
  return document;
}

TEST(ModelConfig, LlamaDefaults) {
  const ModelConfig c = read(llama());
  EXPECT_EQ(c.head_dim, 4);
  EXPECT_DOUBLE_EQ(c.attention_scale, 0.5);
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.mlp_bias);
  EXPECT_TRUE(c.tie_word_embeddings);
  for (const LayerConfig& layer : c.layers) EXPECT_EQ(layer.window, kNoWindow);
}

TEST(ModelConfig, HeadDimNeedNotBeTheQuotient) {
  EXPECT_EQ(read(with(llama(), {{"head_dim", 32}})).query_width(), 128);
  EXPECT_EQ(read(with(llama(), {{"head_dim", nullptr}})).head_dim, 4);
}

TEST(ModelConfig, WindowsBelongToLayers) {
  const json qwen = with(llama(), {{"model_type", "qwen2"},
                                   {"sliding_window", 7},
                                   {"max_window_layers", 2},
                                   {"use_sliding_window", true}});
  const ModelConfig c = read(qwen);
  EXPECT_EQ(c.layers[1].window, kNoWindow);
  EXPECT_EQ(c.layers[2].window, 7);
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_EQ(read(with(qwen, {{"use_sliding_window", false}})).layers[2].window, kNoWindow);
  const ModelConfig typed = read(
      with(qwen, {{"layer_types", {"sliding_attention", "full_attention", "sliding_attention"}}}));
  EXPECT_EQ(typed.layers[0].window, 7);
  EXPECT_EQ(typed.layers[1].window, kNoWindow);
  EXPECT_EQ(
      read(with(llama(), {{"model_type", "mistral"}, {"sliding_window", 5}})).layers[0].window, 5);
}

TEST(ModelConfig, WhatWouldChangeTheResultIsRefusedByName) {
  EXPECT_NE(refusal(with(llama(), {{"model_type", "mamba"}})).find("mamba"), std::string::npos);
  EXPECT_NE(refusal(with(llama(), {{"hidden_act", "relu"}})).find("relu"), std::string::npos);
  EXPECT_NE(
      refusal(with(llama(), {{"quantization_config", {{"bits", 4}}}})).find("quantization_config"),
      std::string::npos);
  EXPECT_NE(refusal(with(llama(), {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}}))
                .find("dynamic"),
            std::string::npos);
  EXPECT_NE(refusal(with(llama(), {{"rope_scaling", {{"rope_type", "linear"}}}})).find("factor"),
            std::string::npos);
  EXPECT_NE(refusal(with(llama(), {{"num_key_value_heads", 3}})).find("3"), std::string::npos);
  EXPECT_NE(refusal(with(llama(), {{"vocab_size", -1}})).find("vocab_size"), std::string::npos);
  EXPECT_NE(refusal(with(llama(), {{"pretraining_tp", 2}})).find("pretraining_tp"),
            std::string::npos);
  EXPECT_NE(refusal(with(llama(), {{"layer_types", {"full_attention"}}, {"model_type", "qwen3"}}))
                .find("1 entries"),
            std::string::npos);
}

TEST(ModelConfig, AFieldNobodyKnowsIsNoted) {
  const ModelConfig c = read(with(llama(), {{"logit_multiplier", 2.0}, {"another", false}}));
  ASSERT_EQ(c.notes.size(), 1U);
  EXPECT_NE(c.notes[0].find("logit_multiplier"), std::string::npos);
}

}  // namespace
}  // namespace graft
