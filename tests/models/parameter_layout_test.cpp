// Translation between layouts: every one to every other and back is the identity, and what could
// mean two things is refused.

#include "models/parameter_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "models/layout.h"
#include "support/errors.h"
#include "support/tiny_model.h"

namespace graft {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using Layers = ParameterLayout::Layers;
using Naming = ParameterLayout::Naming;
using Wrapper = ParameterLayout::Wrapper;

ModelConfig small_config(const char* family = "qwen3", int layers = 3) {
  nlohmann::json document = testing::tiny_config(layers);
  document["model_type"] = family;
  return parse_model_config(document.dump(), "config.json");
}

Tensor numbered(const std::string& name, const Shape& shape, DType dtype = DType::kF32) {
  Tensor t = Tensor::empty(DType::kF32, shape);
  const auto first = static_cast<float>(fnv1a_32(name) % 1000);
  for (int64_t i = 0; i < t.elements(); ++i) t.data<float>()[i] = first + static_cast<float>(i);
  return t.as(dtype);
}

// All parameters of a model with low-rank factors on every linear layer.
ParameterTree small_tree(const ModelConfig& config, DType dtype = DType::kF32) {
  ParameterTree tree;
  for (const VariableSpec& v : base_parameters(config)) {
    tree.emplace(v.name, numbered(v.name, v.shape, dtype));
  }
  for (const LinearModule& m : all_linears(config)) {
    tree.emplace(m.name + ".lora_A", numbered(m.name + "a", {3, m.in}));
    tree.emplace(m.name + ".lora_B", numbered(m.name + "b", {m.out, 3}));
  }
  return tree;
}

void expect_equal(const ParameterTree& found, const ParameterTree& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    const Tensor& other = found.at(name);
    ASSERT_EQ(other.dtype(), tensor.dtype()) << name;
    ASSERT_EQ(other.shape(), tensor.shape()) << name;
    ASSERT_EQ(std::memcmp(other.bytes(), tensor.bytes(), tensor.size_bytes()), 0) << name;
  }
}

std::vector<ParameterLayout> every_layout() {
  std::vector<ParameterLayout> layouts = {{.naming = Naming::kHuggingFace}};
  for (const Wrapper wrapper :
       {Wrapper::kNone, Wrapper::kParams, Wrapper::kParamsTwice, Wrapper::kBase}) {
    for (const Layers layers : {Layers::kUnderscore, Layers::kNested, Layers::kNumber}) {
      layouts.push_back({Naming::kMaxText, wrapper, layers, 1});
    }
    for (const int64_t axis : {0, 1, 2, 3}) {
      layouts.push_back({Naming::kMaxText, wrapper, Layers::kStacked, axis});
    }
  }
  return layouts;
}

TEST(ParameterLayout, EveryLayoutToEveryOtherAndBackIsTheIdentity) {
  const ModelConfig config = small_config();
  const ParameterTree tree = small_tree(config);
  std::vector<ParameterTree> trees;
  const std::vector<ParameterLayout> layouts = every_layout();
  for (const ParameterLayout& layout : layouts) trees.push_back(to_layout(tree, config, layout));
  for (size_t i = 0; i < layouts.size(); ++i) {
    const std::optional<int64_t> axis = layouts[i].scan_axis;
    expect_equal(from_layout(trees[i], config, axis), tree);
    for (size_t j = 0; j < layouts.size(); ++j) {
      expect_equal(translate(trees[i], config, layouts[j], axis), trees[j]);
    }
  }
}

TEST(ParameterLayout, OtherFamiliesAndTypesToo) {
  for (const char* family : {"llama", "qwen2"}) {
    const ModelConfig config = small_config(family);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const ParameterTree tree = small_tree(config, dtype);
      expect_equal(from_layout(to_layout(tree, config, {}), config), tree);
    }
  }
}

TEST(ParameterLayout, NamesAndShapesAreMaxTexts) {
  const ModelConfig config = small_config();  // 32 wide, 4 heads of 8, 2 of keys, mlp 48, 97 tokens
  const ParameterTree tree = to_layout(small_tree(config), config, {});
  const auto shape = [&](const std::string& name) {
    return tree.contains(name) ? to_string(tree.at(name).shape()) : "none";
  };
  const std::string decoder = "params/params/decoder/";
  EXPECT_EQ(shape("params/params/token_embedder/embedding"), "[97, 32]");
  EXPECT_EQ(shape(decoder + "decoder_norm/scale"), "[32]");
  EXPECT_EQ(shape(decoder + "logits_dense/kernel"), "[32, 97]");
  EXPECT_EQ(shape(decoder + "layers/self_attention/query/kernel"), "[32, 3, 4, 8]");
  EXPECT_EQ(shape(decoder + "layers/self_attention/key/kernel"), "[32, 3, 2, 8]");
  EXPECT_EQ(shape(decoder + "layers/self_attention/out/kernel"), "[4, 3, 8, 32]");
  EXPECT_EQ(shape(decoder + "layers/self_attention/out/kernel_lora_a"), "[4, 3, 8, 3]");
  EXPECT_EQ(shape(decoder + "layers/self_attention/out/kernel_lora_b"), "[3, 3, 32]");
  EXPECT_EQ(shape(decoder + "layers/self_attention/query/kernel_lora_a"), "[32, 3, 3]");
  EXPECT_EQ(shape(decoder + "layers/self_attention/query/kernel_lora_b"), "[3, 3, 4, 8]");
  EXPECT_EQ(shape(decoder + "layers/mlp/wi_0/kernel"), "[32, 3, 48]");
  EXPECT_EQ(shape(decoder + "layers/mlp/wo/kernel"), "[48, 3, 32]");
  EXPECT_EQ(shape(decoder + "layers/pre_self_attention_layer_norm/scale"), "[32, 3]");
  EXPECT_EQ(shape(decoder + "layers/self_attention/query_norm/scale"), "[8, 3]");
  // One value, followed by hand: query[e, layer, head, d] is q_proj[head * 8 + d, e].
  const Tensor query = tree.at(decoder + "layers/self_attention/query/kernel");
  const Tensor q = small_tree(config).at("model.layers.2.self_attn.q_proj.weight");
  EXPECT_EQ(query.data<float>()[((5 * 3 + 2) * 4 + 1) * 8 + 7],
            q.data<float>()[(1 * 8 + 7) * 32 + 5]);
}

TEST(ParameterLayout, KeysOfSeveralFormsMerge) {
  const ModelConfig config = small_config("llama", 2);
  const ParameterTree tree = small_tree(config);
  const ParameterTree numbers =
      to_layout(tree, config, {Naming::kMaxText, Wrapper::kParams, Layers::kNumber, 1});
  const ParameterTree underscores =
      to_layout(tree, config, {Naming::kMaxText, Wrapper::kBase, Layers::kUnderscore, 1});
  // Kernels under one kind of key, adapters under the other.
  ParameterTree mixed;
  for (const auto& [name, tensor] : numbers) {
    if (name.find("_lora_") == std::string::npos) mixed.emplace(name, tensor);
  }
  for (const auto& [name, tensor] : underscores) {
    if (name.find("_lora_") != std::string::npos) mixed.emplace(name, tensor);
  }
  expect_equal(from_layout(mixed, config), tree);
  // One array under both is told.
  const std::string twice = "base/decoder/layers_0/mlp/wi_0/kernel";
  mixed.emplace(twice, underscores.at(twice));
  EXPECT_THAT(error_of([&] { from_layout(mixed, config); }),
              ::testing::AllOf(HasSubstr(twice), HasSubstr("params/decoder/0/mlp/wi_0/kernel")));
}

TEST(ParameterLayout, FlatKernelsAndPeftNamesAreRead) {
  const ModelConfig config = small_config("llama", 1);
  const std::string module = "model.layers.0.self_attn.q_proj";
  const Tensor weight = numbered("w", {32, 32});
  const ParameterTree flat = to_layout({{module + ".weight", weight}}, config,
                                       {.wrapper = Wrapper::kNone, .layers = Layers::kUnderscore});
  const Tensor kernel = flat.at("decoder/layers_0/self_attention/query/kernel");
  expect_equal(
      from_layout({{"decoder/layers_0/self_attention/query/kernel", kernel.reshaped({32, 32})}},
                  config),
      {{module + ".weight", weight}});
  const Tensor a = numbered("a", {2, 32});
  expect_equal(from_layout({{"base_model.model." + module + ".lora_A.weight", a}}, config),
               {{module + ".lora_A", a}});
}

TEST(ParameterLayout, AmbiguousTreesRaise) {
  // 32 layers of width 32: a stacked norm is [32, 32] whatever the axis.
  const ModelConfig square = small_config("llama", 32);
  const std::string norm = "params/decoder/layers/pre_self_attention_layer_norm/scale";
  const ParameterTree tree{{norm, numbered("n", {32, 32})}};
  EXPECT_THAT(error_of([&] { from_layout(tree, square); }),
              ::testing::AllOf(HasSubstr(norm), HasSubstr("on which axis")));
  const Tensor first = from_layout(tree, square, 1).at("model.layers.3.input_layernorm.weight");
  EXPECT_EQ(first.data<float>()[2], tree.at(norm).data<float>()[2 * 32 + 3]);
  // Another array of the same tree may settle it.
  ParameterTree settled = tree;
  settled.emplace("params/decoder/layers/mlp/wi_0/kernel", numbered("k", {32, 32, 48}));
  EXPECT_THAT(error_of([&] { from_layout(settled, square); }), HasSubstr("on which axis"));

  const ModelConfig config = small_config("llama", 2);
  const Tensor vector = numbered("n", {32});
  const auto error = [&](const ParameterTree& t) {
    return error_of([&] { from_layout(t, config); });
  };
  EXPECT_THAT(error({{"params/decoder/decoder_norm/scale", vector},
                     {"params/params/decoder/decoder_norm/scale", vector}}),
              HasSubstr("are both model.norm.weight"));
  EXPECT_THAT(error({{"decoder/decoder_norm/scale", vector}, {"model.norm.weight", vector}}),
              HasSubstr("are both model.norm.weight"));
  EXPECT_THAT(error({{"decoder/layers_2/mlp/wi_0/kernel", numbered("k", {32, 48})}}),
              HasSubstr("of layer 2; the model has 2"));
  EXPECT_THAT(error({{"decoder/layers_0/mlp/wi_2/kernel", vector}}),
              HasSubstr("is no parameter of this model"));
  EXPECT_THAT(error({{"decoder/layers_0/mlp/wi_0/kernel", numbered("k", {48, 32})}}),
              HasSubstr("[48, 32]"));
  EXPECT_THAT(error({{"model.layers.0.mlp.gate_proj.weight", numbered("k", {32, 48})}}),
              HasSubstr("[32, 48]"));
  EXPECT_THAT(error({{"decoder/layers/mlp/wi_0/kernel", numbered("k", {32, 3, 48})}}),
              HasSubstr("2 layers"));
}

TEST(ParameterLayout, AStackNeedsEveryLayerAlike) {
  const ModelConfig config = small_config("llama", 2);
  const std::string one = "model.layers.0.self_attn.q_proj.lora_A";
  const std::string two = "model.layers.1.self_attn.q_proj.lora_A";
  EXPECT_THAT(error_of([&] {
                to_layout({{one, numbered("a", {3, 32})}}, config, {});
              }),
              HasSubstr("1 of 2 layers"));
  const ParameterTree ranks{{one, numbered("a", {3, 32})}, {two, numbered("a", {4, 32})}};
  EXPECT_THAT(error_of([&] { to_layout(ranks, config, {}); }), HasSubstr("do not stack"));
  const ParameterLayout unrolled{Naming::kMaxText, Wrapper::kNone, Layers::kNested, 1};
  expect_equal(from_layout(to_layout(ranks, config, unrolled), config), ranks);
}

}  // namespace
}  // namespace graft
