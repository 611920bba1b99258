// What plans say: parameters of known models by value, floating-point operations as the graph has
// them, the native executor's memory as a run has it, and shardings of the whole state.

#include "train/plan.h"

#include <gmock/gmock.h>

#include "support/errors.h"
#include "support/shared.h"
#include "support/temporary.h"
#include "support/tiny_model.h"
#include "train/flops.h"
#include "train/flops_formula.h"
#include "train/runner.h"
#include "train/start.h"
#include "train/state.h"
#include "train/trained.h"

namespace graft {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

std::unique_ptr<PlannedStep> plan_of(const std::filesystem::path& model,
                                     std::vector<std::string> overrides, int64_t devices = 0) {
  overrides.push_back("model=" + model.string());
  overrides.push_back("compute.dtype=f32");
  return plan_step(parse_recipe("", "", overrides), {.devices = devices});
}

TEST(Plan, ShapesComeFromTheConfigurationAlone) {
  const auto small = plan_of(testing::test_data("llama_8b_shape"), {"lora.r=16"});
  EXPECT_EQ(small->parameters, 8'030'261'248);
  // q, o: 8192; k, v: 5120; gate, up, down: 18432; times r, in 32 layers.
  EXPECT_EQ(small->trained_parameters, (2 * 8192 + 2 * 5120 + 3 * 18432) * 16 * 32);
  EXPECT_EQ(plan_of(testing::test_data("llama_70b_shape"), {})->parameters, 70'553'706'496);
}

class TinyPlan : public ::testing::Test {
 protected:
  void SetUp() override { testing::write_tiny_model(folder_.path()); }
  testing::TemporaryFolder folder_;
};

// Nothing is computed again with remat none, so the graph holds what the formula says; but for the
// first layer of a stack of several: one body serves all, and gives the first one's input a
// gradient that nobody reads.
TEST_F(TinyPlan, FormulaIsWhatTheGraphHolds) {
  struct Case {
    std::vector<std::string> overrides;
    double unread;  // products of the first layer's q, k, v per token
  };
  const double qkv = 32 * (32 + 16 + 16);
  const std::vector<Case> cases = {
      {{"lora.r=3"}, qkv + 3 * 3 * 32},
      {{"lora.r=3", "lora.target_modules=[q_proj, down_proj]", "lora.layers_to_transform=[1, 2]"},
       qkv + 3 * 32},
      {{"training.method=full"}, 0},
      {{"training.method=full", "training.trainable=[\"layers.1.*proj\"]"}, 0},
      {{"training.method=full", "training.trainable=[\"layers.2.self_attn.o_proj\"]"}, 0},
      {{"training.method=full", "training.trainable=[\"norm.weight\"]"}, 0}};
  for (const Case& c : cases) {
    std::vector<std::string> overrides = c.overrides;
    overrides.insert(overrides.end(), {"training.remat=none", "data.max_length=64",
                                       "training.per_device_batch_size=2",
                                       "training.gradient_accumulation_steps=2"});
    const auto planned = plan_of(folder_.path(), overrides);
    const double graph = gemm_flops(*build_train_step(planned->options, planned->shape));
    const double formula = step_flops(planned->options, planned->shape).total();
    EXPECT_EQ(graph - formula, 2.0 * (2 * 2 * 64) * c.unread) << c.overrides.back();
  }
}

TEST_F(TinyPlan, AFrozenWeightCostsNoWeightGradient) {
  const auto lora = plan_of(folder_.path(), {"lora.r=2"});
  const auto full = plan_of(folder_.path(), {"training.method=full"});
  const StepFlops a = step_flops(lora->options, lora->shape);
  const StepFlops b = step_flops(full->options, full->shape);
  EXPECT_EQ(a.weight_gradient, 0);
  EXPECT_EQ(b.weight_gradient, b.forward);
  EXPECT_EQ(a.forward, b.forward);
  EXPECT_EQ(b.adapter, 0);
}

// Bytes by part against the state of a run.
TEST_F(TinyPlan, NativeMemoryIsTheRuns) {
  const auto planned = plan_of(
      folder_.path(), {"lora.r=4", "data.max_length=64", "training.per_device_batch_size=2"});
  const NativeMemory memory = native_memory(*planned, planned->shape);
  ModelState state = load_model_state(folder_.path(), DType::kF32);
  int64_t weights = 0, adapters = 0;
  for (const auto& item : state.tensors) weights += static_cast<int64_t>(item.second.size_bytes());
  for (const VariableSpec& v : planned->options.adapters) adapters += 4 * element_count(v.shape);
  EXPECT_EQ(memory.weights, weights);
  EXPECT_EQ(memory.adapters, adapters);
  EXPECT_EQ(memory.optimizer, 2 * adapters);
  AdapterConfig config;
  config.r = 4;
  config.target_modules.expression = "all-linear";
  attach_adapter(state, config, 1);
  begin_optimizer(state, planned->options.trained, std::nullopt);
  StepRunner runner(planned->options, state.tensors, planned->compute.threads);
  runner.prepare_train(planned->shape);
  EXPECT_EQ(memory.activations + memory.workspace, static_cast<int64_t>(runner.arena_bytes()));
}

TEST_F(TinyPlan, WhatFitsFits) {
  const auto planned = plan_of(folder_.path(), {"data.max_length=64", "lora.r=2"});
  const int64_t bytes = 4'000'000;
  const int64_t batch = largest_batch(*planned, bytes);
  ASSERT_GT(batch, 0);
  EXPECT_LE(native_memory(*planned, with_batch(planned->shape, batch)).total(), bytes);
  EXPECT_GT(native_memory(*planned, with_batch(planned->shape, batch + 1)).total(), bytes);
  EXPECT_EQ(largest_batch(*planned, 1000), 0);
  EXPECT_EQ(longest_sequence(*planned, int64_t{1} << 40), 256) << "what the model was made for";
}

TEST(Plan, SearchFindsTheLast) {
  for (int64_t last = 0; last <= 20; ++last) {
    EXPECT_EQ(largest_that_fits(20, [&](int64_t n) { return n <= last; }), last);
  }
  EXPECT_EQ(largest_that_fits(20, [](int64_t) { return true; }), 20);
}

std::string spec_of(const ShardingTable& table, const std::string& name) {
  return to_string(sharding_of(table.shardings(), name).spec);
}

TEST_F(TinyPlan, ShardingsOfTheWholeState) {
  const auto planned = plan_of(folder_.path(), {"mesh={data: 1, fsdp: 4, tensor: 2}", "lora.r=2"});
  const ShardingTable table = sharding_table(*planned, planned->shape);
  const std::string up = "model.layers.1.mlp.up_proj";
  EXPECT_EQ(spec_of(table, up + ".weight"), "P('tensor', 'fsdp')");
  EXPECT_EQ(spec_of(table, up + ".lora_A"), "P(None, 'fsdp')");
  EXPECT_EQ(spec_of(table, up + ".lora_B"), "P('tensor', None)");
  for (const char* moment : {".adam_m", ".adam_v"}) {
    EXPECT_EQ(spec_of(table, up + ".lora_A" + moment), "P(None, 'fsdp')");
    EXPECT_EQ(spec_of(table, up + ".lora_B" + moment), "P('tensor', None)");
  }
  // 97 words cannot be halved; the batch is told as its rule is.
  EXPECT_EQ(spec_of(table, "model.embed_tokens.weight"), "P(None, 'fsdp')");
  EXPECT_EQ(spec_of(table, "input_ids"), "P(None, ('data', 'fsdp'), None)");
  EXPECT_EQ(planned->shape.batch_size, 8 * 4) << "rows of every device of data and fsdp";
}

// Attaching an adapter changes the state: its table is another one.
TEST_F(TinyPlan, ShardingsAreMadeAnewForAnotherState) {
  const auto lora = plan_of(folder_.path(), {"mesh={fsdp: 2, tensor: 2}", "lora.r=2"});
  const auto full = plan_of(folder_.path(), {"mesh={fsdp: 2, tensor: 2}", "training.method=full"});
  const Shardings before =
      resolve_shardings(lora->options.parameters, lora->mesh, default_axis_rules()).shardings();
  std::map<std::string, int> state;
  for (const VariableSpec& v : state_variables(lora->options)) state[v.name] = 0;
  EXPECT_THAT(error_of([&] { replace_leaves(state, before); }), HasSubstr("lora_A"));
  EXPECT_EQ(replace_leaves(state, sharding_table(*lora, lora->shape).shardings()).size(),
            state.size());
  EXPECT_EQ(spec_of(sharding_table(*full, full->shape), "model.layers.0.mlp.up_proj.weight.adam_m"),
            "P('tensor', 'fsdp')");
}

TEST_F(TinyPlan, RulesOfTheRecipeComeFirst) {
  const auto planned = plan_of(folder_.path(), {"mesh={fsdp: 2, tensor: 2}",
                                                "logical_axis_rules={mlp: [], embed: [tensor]}"});
  EXPECT_EQ(spec_of(sharding_table(*planned, planned->shape), "model.layers.0.mlp.up_proj.weight"),
            "P(None, 'tensor')");
}

TEST_F(TinyPlan, RefusesMeshesThatCannotBe) {
  const auto error = [&](const std::string& mesh, int64_t devices) {
    return error_of([&] { plan_of(folder_.path(), {"mesh=" + mesh}, devices); });
  };
  EXPECT_THAT(error("{fsdp: 3}", 8), HasSubstr("3 devices, and there are 8"));
  EXPECT_THAT(error("{fsdp: -1, data: -1}", 8), HasSubstr("size -1"));
  EXPECT_THAT(error("{context: 2}", 2), HasSubstr("context"));
  EXPECT_THAT(error("{rows: 2}", 2), HasSubstr("rows"));
  EXPECT_THAT(error("{fsdp: 0}", 2), HasSubstr("mesh"));
}

}  // namespace
}  // namespace graft
