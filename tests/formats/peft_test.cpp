#include "formats/peft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "formats/safetensors.h"
#include "support/errors.h"
#include "support/shared.h"
#include "support/temporary.h"

namespace graft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Pair;

AdapterConfig parse(const std::string& fields) {
  const std::string basis = R"("peft_type": "LORA", "target_modules": ["q_proj"])";
  return parse_adapter_config("{" + basis + (fields.empty() ? "" : ", ") + fields + "}",
                              "adapter_config.json");
}

std::string parse_error(const std::string& fields) {
  return error_of([&] { parse(fields); });
}

TEST(AdapterConfig, GoldenRoundTripsByteForByte) {
  for (const char* name : {"golden/llama_a/adapter", "golden/llama_a_train/rslora/adapter",
                           "golden/deepseek_v2_a/adapter", "golden/phi3_a/adapter"}) {
    GRAFT_SHARED_OR_SKIP(folder, name);
    const std::string text = read_text_file(folder / "adapter_config.json");
    EXPECT_EQ(format_adapter_config(read_adapter_config(folder / "adapter_config.json")), text);
  }
}

TEST(AdapterConfig, GoldenValues) {
  GRAFT_SHARED_OR_SKIP(folder, "golden/llama_a_train/rslora/adapter");
  const AdapterConfig config = read_adapter_config(folder / "adapter_config.json");
  EXPECT_EQ(config.r, 4);
  EXPECT_EQ(config.lora_alpha, 8);
  EXPECT_TRUE(config.use_rslora);
  EXPECT_THAT(config.target_modules.suffixes, ElementsAre("down_proj", "gate_proj", "k_proj",
                                                          "o_proj", "q_proj", "up_proj", "v_proj"));
  EXPECT_FALSE(config.base_model_name_or_path);
}

TEST(AdapterConfig, GoldensWithUnsupportedFieldsAreRefusedByName) {
  for (const auto& [folder, field] :
       {std::pair{"golden/llama_a_train/dora/adapter", "use_dora"},
        std::pair{"golden/llama_a_train/lm_head_saved/adapter", "modules_to_save"},
        std::pair{"golden/gpt_oss_a/adapter_experts", "target_parameters"}}) {
    GRAFT_SHARED_OR_SKIP(path, folder);
    EXPECT_THAT(error_of([&] { read_adapter_config(path / "adapter_config.json"); }),
                HasSubstr(std::string("adapter_config.json: ") + field));
  }
}

TEST(AdapterConfig, EveryFieldSurvives) {
  AdapterConfig config;
  config.base_model_name_or_path = "models/é";
  config.r = 16;
  config.lora_alpha = 32.5;
  config.lora_dropout = 0.05;
  config.target_modules.expression = ".*q_proj";
  config.exclude_modules.suffixes = {"lm_head"};
  config.rank_pattern = {{"q_proj", 8}, {"a_proj", 2}};  // in this order: the first match wins
  config.alpha_pattern = {{"q_proj", 4.5}, {"k_proj", 2}};
  testing::TemporaryFolder folder;
  write_adapter_config(folder / "adapter_config.json", config);
  const std::string text = read_text_file(folder / "adapter_config.json");
  EXPECT_THAT(text, HasSubstr("\"lora_dropout\": 0.05,"));
  EXPECT_THAT(text, HasSubstr("\"k_proj\": 2\n"));
  EXPECT_THAT(text, HasSubstr("models/\\u00e9"));
  const AdapterConfig read = read_adapter_config(folder / "adapter_config.json");
  EXPECT_EQ(read.base_model_name_or_path, config.base_model_name_or_path);
  EXPECT_EQ(read.lora_alpha, 32.5);
  EXPECT_EQ(read.lora_dropout, 0.05);
  EXPECT_EQ(read.target_modules.expression, ".*q_proj");
  EXPECT_THAT(read.exclude_modules.suffixes, ElementsAre("lm_head"));
  EXPECT_THAT(read.rank_pattern, ElementsAre(Pair("q_proj", 8), Pair("a_proj", 2)));
  EXPECT_THAT(read.alpha_pattern, ElementsAre(Pair("q_proj", 4.5), Pair("k_proj", 2.0)));
}

TEST(AdapterConfig, LayersAsListOrNumber) {
  EXPECT_THAT(
      *parse(R"("layers_to_transform": [1, 3], "layers_pattern": "layers")").layers_to_transform,
      ElementsAre(1, 3));
  EXPECT_THAT(*parse(R"("layers_to_transform": 2)").layers_to_transform, ElementsAre(2));
  EXPECT_FALSE(parse("").layers_to_transform);
  EXPECT_THAT(parse_error(R"("layers_pattern": ["h"])"), HasSubstr("layers_pattern"));
  EXPECT_THAT(error_of([] {
                parse_adapter_config(R"({"peft_type": "LORA", "target_modules": "x",
                                         "layers_to_transform": [1]})",
                                     "f");
              }),
              HasSubstr("layers_to_transform"));
}

TEST(AdapterConfig, UnsupportedFieldsAreRefusedUnlessNeutral) {
  for (const auto& [field, neutral, used] :
       {std::tuple{"use_dora", "false", "true"},
        std::tuple{"modules_to_save", "null", R"(["lm_head"])"},
        std::tuple{"modules_to_save", "[]", R"(["lm_head"])"},
        std::tuple{"target_parameters", "[]", R"(["w"])"},
        std::tuple{"trainable_token_indices", "null", "[1]"},
        std::tuple{"lora_bias", "false", "true"}, std::tuple{"fan_in_fan_out", "false", "true"},
        std::tuple{"alora_invocation_tokens", "null", "[1, 2]"},
        std::tuple{"layer_replication", "null", "[[0, 4]]"},
        std::tuple{"use_qalora", "false", "true"},
        std::tuple{"use_bdlora", "null", R"({"nblocks": 2})"},
        std::tuple{"velora_config", "null", R"({"scale": 1.0})"},
        std::tuple{"loftq_config", "{}", R"({"loftq_bits": 4})"},
        std::tuple{"bias", "\"none\"", "\"lora_only\""},
        std::tuple{"init_lora_weights", "true", "\"pissa\""},
        std::tuple{"init_lora_weights", "\"gaussian\"", "\"loftq\""},
        std::tuple{"task_type", "null", "\"SEQ_CLS\""},
        std::tuple{"a_field_of_the_future", "null", "1"},
        std::tuple{"a_field_of_the_future", "\"\"", "\"on\""}}) {
    EXPECT_EQ(parse_error(fmt::format("\"{}\": {}", field, neutral)), "") << field;
    EXPECT_THAT(parse_error(fmt::format("\"{}\": {}", field, used)),
                HasSubstr(fmt::format("adapter_config.json: {}", field)));
  }
  EXPECT_EQ(parse_error(R"("inference_mode": false, "revision": "main", "qalora_group_size": 32)"),
            "");
}

TEST(AdapterConfig, WrongValues) {
  EXPECT_THAT(parse_error(R"("r": 0)"), HasSubstr("adapter_config.json: r: 0"));
  EXPECT_THAT(parse_error(R"("r": "8")"), HasSubstr("a whole number"));
  EXPECT_THAT(parse_error(R"("r": 1e12)"), HasSubstr("not a rank"));
  EXPECT_THAT(parse_error(R"("lora_dropout": 1.0)"), HasSubstr("lora_dropout"));
  EXPECT_THAT(parse_error(R"("rank_pattern": {"q": -1})"), HasSubstr("rank_pattern.q"));
  EXPECT_THAT(parse_error(R"("rank_pattern": [1])"), HasSubstr("rank_pattern"));
  EXPECT_THAT(error_of([] { parse_adapter_config(R"({"peft_type": "IA3"})", "f"); }),
              HasSubstr("IA3"));
  EXPECT_THAT(error_of([] { parse_adapter_config("{}", "f"); }), HasSubstr("peft_type"));
  EXPECT_THAT(error_of([] { parse_adapter_config(R"({"peft_type": "LORA"})", "f"); }),
              HasSubstr("target_modules"));
  EXPECT_THAT(error_of([] { parse_adapter_config("[1]", "f"); }), HasSubstr("object"));
}

TEST(AdapterKey, BothWays) {
  const std::string key = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
  const auto parsed = parse_adapter_key(key);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->module, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(parsed->part, AdapterPart::kA);
  EXPECT_EQ(adapter_key(parsed->module, parsed->part), key);
  const auto named = parse_adapter_key("base_model.model.lm_head.lora_B.default.weight");
  ASSERT_TRUE(named);
  EXPECT_EQ(named->module, "lm_head");
  EXPECT_EQ(named->part, AdapterPart::kB);
  for (const char* other :
       {"", "base_model.model.weight", "model.layers.0.q_proj.lora_A.weight",
        "base_model.model.lora_A.weight", "base_model.model.q_proj.weight",
        "base_model.model.q_proj.lora_A.bias", "base_model.model.q_proj.lora_A.a.b.weight",
        "base_model.model.q_proj.lora_A..weight", "base_model.model.q_proj.lora_Ax.weight",
        "base_model.model.embed_tokens.lora_embedding_A",
        "base_model.model.q_proj.lora_magnitude_vector"}) {
    EXPECT_FALSE(parse_adapter_key(other)) << other;
  }
}

TEST(AdapterKey, GoldenFilesAreUnderstood) {
  GRAFT_SHARED_OR_SKIP(path, "golden/llama_a/adapter/adapter_model.safetensors");
  for (const std::string& name : SafetensorsFile::open(path).names()) {
    const auto key = parse_adapter_key(name);
    ASSERT_TRUE(key) << name;
    EXPECT_EQ(adapter_key(key->module, key->part), name);
  }
}

}  // namespace
}  // namespace graft
