#include "adapters/targets.h"

#include <gtest/gtest.h>

#include <cmath>

namespace graft {
namespace {

std::vector<LinearModule> modules() {
  std::vector<LinearModule> list;
  for (int layer = 0; layer < 12; ++layer) {
    const std::string prefix = layer_prefix(layer);
    list.push_back({prefix + "self_attn.q_proj", 8, 6, false, "embed", "heads"});
    list.push_back({prefix + "self_attn.v_proj", 8, 4, false, "embed", "kv_heads"});
    list.push_back({prefix + "mlp.up_proj", 8, 10, false, "embed", "mlp"});
  }
  return list;
}

AdapterConfig config_of(ModuleSelection targets) {
  AdapterConfig config;
  config.target_modules = std::move(targets);
  config.r = 4;
  config.lora_alpha = 8;
  return config;
}

TEST(PlanAdapters, ASuffixMatchesWholeNamesOnly) {
  const AdapterPlan plan =
      plan_adapters(config_of({{"q_proj", "proj", "layers.1.mlp.up_proj"}, {}}), modules());
  EXPECT_EQ(plan.modules_per_target,
            (std::map<std::string, int64_t>{{"q_proj", 12}, {"layers.1.mlp.up_proj", 1}}));
  EXPECT_EQ(plan.unmatched_targets, std::vector<std::string>{"proj"});
  EXPECT_TRUE(plan.sites.contains("model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(plan.sites.contains("model.layers.11.mlp.up_proj"));
}

TEST(PlanAdapters, AnExpressionMatchesTheFullName) {
  const AdapterPlan plan =
      plan_adapters(config_of({{}, R"(.*layers\.[0-3]\..*(q|v)_proj)"}), modules());
  EXPECT_EQ(plan.sites.size(), 8U);
  EXPECT_TRUE(plan_adapters(config_of({{}, "q_proj"}), modules()).sites.empty());
}

TEST(PlanAdapters, AllLinearTakesEveryModule) {
  EXPECT_EQ(plan_adapters(config_of({{}, "all-linear"}), modules()).sites.size(), 36U);
}

TEST(PlanAdapters, ExclusionsAndLayersTakeModulesOut) {
  AdapterConfig config = config_of({{}, "all-linear"});
  config.exclude_modules.suffixes = {"up_proj"};
  config.layers_to_transform = {{1, 11}};
  const AdapterPlan plan = plan_adapters(config, modules());
  EXPECT_EQ(plan.sites.size(), 4U);
  EXPECT_TRUE(plan.sites.contains("model.layers.11.self_attn.q_proj"));
}

TEST(PlanAdapters, TheFirstPatternThatMatchesWins) {
  AdapterConfig config = config_of({{"q_proj", "v_proj"}, {}});
  config.rank_pattern = {
      {"layers.1.self_attn.q_proj", 16}, {R"(layers\.1\..*)", 2}, {"nothing", 3}};
  config.alpha_pattern = {{"v_proj", 2}};
  const AdapterPlan plan = plan_adapters(config, modules());
  EXPECT_EQ(plan.sites.at("model.layers.1.self_attn.q_proj").rank, 16);
  EXPECT_DOUBLE_EQ(plan.sites.at("model.layers.1.self_attn.q_proj").scale, 0.5);
  EXPECT_EQ(plan.sites.at("model.layers.1.self_attn.v_proj").rank, 2);
  // "layers.1." must not reach into layer 11.
  EXPECT_EQ(plan.sites.at("model.layers.11.self_attn.q_proj").rank, 4);
  EXPECT_DOUBLE_EQ(plan.sites.at("model.layers.0.self_attn.v_proj").scale, 0.5);
  EXPECT_EQ(plan.unmatched_patterns, std::vector<std::string>{"lora.rank_pattern: nothing"});
}

TEST(PlanAdapters, RankStabilisedScaleDividesByTheRoot) {
  AdapterConfig config = config_of({{"q_proj"}, {}});
  config.use_rslora = true;
  config.r = 16;
  EXPECT_DOUBLE_EQ(plan_adapters(config, modules()).sites.begin()->second.scale, 2);
}

TEST(PlanAdapters, VariablesHaveTheShapesOfTheirModule) {
  const AdapterPlan plan = plan_adapters(config_of({{"v_proj"}, {}}), modules());
  ASSERT_EQ(plan.variables.size(), 24U);
  EXPECT_EQ(plan.variables[0].name, "model.layers.0.self_attn.v_proj.lora_A");
  EXPECT_EQ(plan.variables[0].shape, (Shape{4, 8}));
  EXPECT_EQ(plan.variables[1].shape, (Shape{4, 4}));
  EXPECT_EQ(plan.variables[1].logical_axes, (std::vector<std::string>{"kv_heads", "lora_rank"}));
}

TEST(PlanAdapters, AnInvalidExpressionIsNamed) {
  EXPECT_THROW(plan_adapters(config_of({{}, "(q_proj"}), modules()), Error);
}

}  // namespace
}  // namespace graft
