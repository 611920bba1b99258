#include "adapters/gguf_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "formats/gguf_writer.h"
#include "support/errors.h"
#include "support/temporary.h"
#include "support/tiny_model.h"

namespace graft {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

ModelConfig tiny(const char* family = "llama") {
  nlohmann::json document = testing::tiny_config();
  document["model_type"] = family;
  return parse_model_config(document.dump(), "config.json");
}

NamedTensors random_values(const AdapterPlan& plan) {
  NamedTensors tensors;
  for (const VariableSpec& v : plan.variables) {
    Philox random(1, fnv1a_32(v.name));
    Tensor t = Tensor::empty(DType::kF32, v.shape);
    for (int64_t i = 0; i < t.elements(); ++i) {
      t.data<float>()[i] = static_cast<float>(random.normal());
    }
    tensors.emplace(v.name, t);
  }
  return tensors;
}

AdapterConfig config_of(int64_t r, double alpha, bool rslora) {
  AdapterConfig config;
  config.r = r;
  config.lora_alpha = alpha;
  config.use_rslora = rslora;
  config.target_modules.suffixes = {"q_proj", "k_proj", "down_proj"};
  return config;
}

// scale * B A of a module.
std::vector<double> update(const AdapterPlan& plan, const NamedTensors& tensors,
                           const std::string& module) {
  const LoraSite& site = plan.sites.at(module);
  const Tensor& a = tensors.at(module + ".lora_A");
  const Tensor& b = tensors.at(module + ".lora_B");
  std::vector<double> product;
  for (int64_t o = 0; o < b.shape()[0]; ++o) {
    for (int64_t i = 0; i < a.shape()[1]; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < site.rank; ++k) {
        sum += static_cast<double>(b.data<float>()[o * site.rank + k]) *
               static_cast<double>(a.data<float>()[k * a.shape()[1] + i]);
      }
      product.push_back(site.scale * sum);
    }
  }
  return product;
}

void expect_round_trip(const ModelConfig& model, const AdapterConfig& config) {
  const TemporaryFolder folder;
  const AdapterPlan plan = plan_adapters(config, all_linears(model));
  const NamedTensors tensors = random_values(plan);
  write_gguf_adapter(folder / "a.gguf", model, plan, tensors, DType::kF32);
  const GgufAdapter again = read_gguf_adapter(folder / "a.gguf", model);
  ASSERT_EQ(again.plan.sites.size(), plan.sites.size());
  for (const auto& [module, site] : plan.sites) {
    EXPECT_EQ(again.plan.sites.at(module).rank, site.rank);
    const auto expected = update(plan, tensors, module);
    const auto found = update(again.plan, again.tensors, module);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(found[i], expected[i], 1e-5) << module;
    }
  }
}

TEST(GgufAdapter, WhatIsWrittenComputesTheSame) {
  for (const char* family : {"llama", "qwen2", "qwen3"}) {
    expect_round_trip(tiny(family), config_of(4, 8, false));
    expect_round_trip(tiny(family), config_of(8, 16, true));
  }
  AdapterConfig uneven = config_of(4, 8, false);
  uneven.rank_pattern = {{"q_proj", 2}};
  uneven.alpha_pattern = {{"down_proj", 1}};
  expect_round_trip(tiny(), uneven);
  expect_round_trip(tiny(),
                    config_of(4, 0, false));  // a scale of 0, which readers know no alpha for
}

// What llama.cpp reads: the keys, the names, alpha with rsLoRA's root in it, the row order of q.
TEST(GgufAdapter, FollowsTheConventions) {
  const TemporaryFolder folder;
  const ModelConfig model = tiny();
  const AdapterPlan plan = plan_adapters(config_of(4, 8, true), all_linears(model));
  const NamedTensors tensors = random_values(plan);
  write_gguf_adapter(folder / "a.gguf", model, plan, tensors, DType::kF32);
  const GgufFile file = GgufFile::open(folder / "a.gguf");
  EXPECT_EQ(file.get_string("general.type"), "adapter");
  EXPECT_EQ(file.get_string("adapter.type"), "lora");
  EXPECT_EQ(file.get_string("general.architecture"), "llama");
  EXPECT_FLOAT_EQ(file.get_f32("adapter.lora.alpha"), 16);  // 8 / sqrt(4) * 4
  EXPECT_EQ(file.tensor("blk.1.attn_q.weight.lora_a").shape, (Shape{4, 32}));
  EXPECT_EQ(file.tensor("blk.1.attn_q.weight.lora_b").shape, (Shape{32, 4}));
  EXPECT_EQ(file.tensor("blk.2.ffn_down.weight.lora_a").shape, (Shape{4, 48}));
  const Tensor stored = file.dequantize("blk.1.attn_q.weight.lora_b");
  const Tensor& plain = tensors.at("model.layers.1.self_attn.q_proj.lora_B");
  EXPECT_EQ(stored.data<float>()[4], plain.data<float>()[16]);  // row 1 there is row 4 of 8 here
  EXPECT_EQ(file.tensors().size(), plan.variables.size());
}

TEST(GgufAdapter, RefusesWhatDoesNotFit) {
  const TemporaryFolder folder;
  const ModelConfig model = tiny();
  const AdapterPlan plan = plan_adapters(config_of(4, 8, false), all_linears(model));
  write_gguf_adapter(folder / "a.gguf", model, plan, random_values(plan), DType::kF16);
  EXPECT_THAT(error_of([&] { read_gguf_adapter(folder / "a.gguf", tiny("qwen2")); }),
              HasSubstr("architecture llama, the model's is qwen2"));
  nlohmann::json narrow = testing::tiny_config();
  narrow["intermediate_size"] = 40;
  const ModelConfig other = parse_model_config(narrow.dump(), "config.json");
  EXPECT_THAT(error_of([&] { read_gguf_adapter(folder / "a.gguf", other); }),
              HasSubstr("\"blk.0.ffn_down.weight.lora_a\" has shape [4, 48]"));
  GgufMetadata metadata;
  metadata.set_string("general.type", "model");
  GgufWriter writer(folder / "m.gguf", metadata, {});
  writer.commit();
  EXPECT_THAT(error_of([&] { read_gguf_adapter(folder / "m.gguf", model); }),
              HasSubstr("is no adapter"));
  metadata.set_string("general.type", "adapter");
  metadata.set_string("adapter.type", "lora");
  metadata.set_string("general.architecture", "llama");
  GgufWriter half(folder / "h.gguf", metadata,
                  {{"blk.0.attn_q.weight.lora_a", GgmlType::kF32, {1, 32}}});
  half.add("blk.0.attn_q.weight.lora_a", Tensor::zeros(DType::kF32, {1, 32}));
  half.commit();
  EXPECT_THAT(error_of([&] { read_gguf_adapter(folder / "h.gguf", model); }),
              HasSubstr("one factor of two"));
}

}  // namespace
}  // namespace graft
