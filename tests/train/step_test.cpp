// Laws of the train step: the same bits however it is run, no update where a number is not finite,
// and no work for what is not trained.

#include "train/step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ir/passes.h"
#include "ir/primitives.h"
#include "ir/scan.h"
#include "ops/linear.h"
#include "support/temporary.h"
#include "support/tiny_model.h"
#include "train/runner.h"
#include "train/start.h"
#include "train/state.h"
#include "train/trained.h"

namespace graft {
namespace {

struct Variant {
  Remat remat = Remat::kMinimal;
  bool scan_layers = true;
  int threads = 1;
  double dropout = 0;
};

class StepTest : public ::testing::Test {
 protected:
  void SetUp() override { testing::write_tiny_model(folder_.path()); }

  ModelState load(const Variant& variant = {}) const {
    ModelState state = load_model_state(folder_.path(), DType::kF32);
    AdapterConfig config;
    config.r = 4;
    config.lora_alpha = 8;
    config.lora_dropout = variant.dropout;
    config.target_modules.expression = "all-linear";
    attach_adapter(state, config, 5);
    // B away from zero, so that every gradient is alive from the first step.
    for (const VariableSpec& v : state.adapter.variables) {
      if (!v.name.ends_with(".lora_B")) continue;
      Philox random(9, fnv1a_32(v.name));
      for (int64_t i = 0; i < element_count(v.shape); ++i) {
        state.tensors[v.name].data<float>()[i] = static_cast<float>(0.05 * random.normal());
      }
    }
    return state;
  }

  static StepOptions options_of(ModelState& state, const Variant& variant) {
    StepOptions options = adapter_step_options(state);
    begin_optimizer(state, options.trained, std::nullopt);
    options.remat = variant.remat;
    options.scan_layers = variant.scan_layers;
    return options;
  }

  // Rows of different lengths; the first third of each is a prompt.
  static Batch batch(int64_t rows_each, int64_t micro_batches) {
    static std::vector<TokenizedExample> examples;
    examples.clear();
    for (int row = 0; row < 4; ++row) {
      Philox random(21, static_cast<uint32_t>(row));
      TokenizedExample e;
      const int length = 40 + 17 * row;
      for (int t = 0; t < length; ++t) {
        e.ids.push_back(static_cast<int32_t>(random.below(97)));
        e.trained.push_back(t > length / 3);
      }
      examples.push_back(e);
    }
    std::vector<std::vector<const TokenizedExample*>> sequences;
    for (const TokenizedExample& e : examples) sequences.push_back({&e});
    return make_batch(sequences, rows_each, micro_batches);
  }

  // Losses, norms and final adapter after three steps, as one list of bits.
  std::vector<float> run(const Variant& variant, int64_t rows_each = 2,
                         int64_t micro_batches = 2) const {
    ModelState state = load(variant);
    const StepOptions options = options_of(state, variant);
    StepRunner runner(options, state.tensors, variant.threads);
    std::vector<float> bits;
    for (int64_t step = 1; step <= 3; ++step) {
      const StepResult r = runner.train(batch(rows_each, micro_batches), {1e-2, step, 77});
      EXPECT_TRUE(r.finite);
      bits.push_back(static_cast<float>(r.loss));
      bits.push_back(static_cast<float>(r.grad_norm));
    }
    for (const std::string& name : options.trained) {
      const auto values = state.tensors.at(name).span<float>();
      bits.insert(bits.end(), values.begin(), values.end());
    }
    return bits;
  }

  testing::TemporaryFolder folder_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return largest;
}

TEST_F(StepTest, TheSameBitsHoweverItIsRun) {
  for (double dropout : {0.0, 0.25}) {
    const std::vector<float> reference = run({.dropout = dropout});
    for (Remat remat : {Remat::kNone, Remat::kMinimal, Remat::kFull}) {
      for (bool scan_layers : {true, false}) {
        for (int threads : {1, 2}) {
          EXPECT_TRUE(same_bits(run({remat, scan_layers, threads, dropout}), reference))
              << remat_name(remat) << (scan_layers ? " scanned " : " unrolled ") << threads
              << " threads, dropout " << dropout;
        }
      }
    }
  }
}

TEST_F(StepTest, AnotherSplitIntoMicroBatchesIsEqualInMeaning) {
  for (double dropout : {0.0, 0.25}) {
    const std::vector<float> one = run({.dropout = dropout}, 4, 1);
    EXPECT_LT(largest_difference(run({.dropout = dropout}, 1, 4), one), 2e-5);
    EXPECT_LT(largest_difference(run({.dropout = dropout}, 2, 2), one), 2e-5);
  }
  EXPECT_GT(largest_difference(run({.dropout = 0.25}), run({})), 1e-3);
}

TEST_F(StepTest, NothingChangesWhereANumberIsNotFinite) {
  ModelState state = load();
  const StepOptions options = options_of(state, {});
  const std::string poisoned = "model.layers.1.mlp.up_proj.lora_B";
  state.tensors.at(poisoned).data<float>()[3] = INFINITY;
  std::map<std::string, Tensor> before;
  for (const auto& [name, tensor] : state.tensors) before[name] = tensor.clone();
  StepRunner runner(options, state.tensors, 1);
  const StepResult r = runner.train(batch(4, 1), {1e-2, 1, 0});
  EXPECT_FALSE(r.finite);
  for (const auto& [name, tensor] : state.tensors) {
    EXPECT_EQ(std::memcmp(tensor.bytes(), before.at(name).bytes(), tensor.size_bytes()), 0) << name;
  }
  // The norms say where.
  for (size_t i = 0; i < options.trained.size(); ++i) {
    if (options.trained[i] == "model.layers.1.mlp.up_proj.lora_A") {
      EXPECT_FALSE(std::isfinite(r.squared_norms[i]));
    }
  }
}

int count_in_bodies(const Graph& graph, const Op& op, int weight_operands) {
  int count = 0;
  for (const Node& node : graph.nodes()) {
    if (node.op == &op) count += weight_operands;
    for (const auto& body : node.bodies) count += count_in_bodies(*body, op, weight_operands);
  }
  return count;
}

// Only layer 2 of 0, 1, 2 is trained: the scan is split there, and nothing runs backward below.
TEST_F(StepTest, NothingRunsBackwardBelowTheFirstTrainedLayer) {
  ModelState state = load_model_state(folder_.path(), DType::kF32);
  AdapterConfig config;
  config.target_modules.expression = "all-linear";
  config.layers_to_transform = {{2}};
  attach_adapter(state, config, 5);
  const StepOptions options = options_of(state, {});
  const auto graph = build_train_step(options, {1, 2, 64, 128});
  std::vector<int64_t> lengths;
  for (const Node& node : graph->nodes()) {
    if (node.op == &kScan) lengths.push_back(ScanLayout::of(node).length);
  }
  EXPECT_EQ(lengths,
            (std::vector<int64_t>{2, 1, 1}));  // two frozen layers, the trained one, and back
  // Seven linears forward twice over; backward only where a cotangent is wanted: not into the
  // frozen layers.
  EXPECT_EQ(count_in_bodies(*graph, kLinear, 1), 14);
  EXPECT_EQ(count_in_bodies(*graph, kLinearInputGrad, 1),
            4);  // o, gate, up, down: q, k and v feed nothing trained
}

// A frozen weight has no gradient GEMM: the only products of the backward body are with low-rank
// factors.
TEST_F(StepTest, FrozenWeightsHaveNoGradientProduct) {
  ModelState state = load();
  const StepOptions options = options_of(state, {});
  const auto graph = build_train_step(options, {1, 2, 64, 128});
  for (const Node& node : graph->nodes()) {
    if (node.op != &kScan) continue;
    const Graph& body = *node.bodies[0];
    for (const Node& inside : body.nodes()) {
      if (inside.op != &kDotGeneral) continue;
      const Shape& shape = body.type(inside.results[0]).shape;
      EXPECT_EQ(std::min(shape[0], shape[1]), 4) << to_string(body.type(inside.results[0]));
    }
  }
}

TEST_F(StepTest, StatisticsHaveOneValueALayer) {
  ModelState state = load();
  const StepOptions options = options_of(state, {});
  StepRunner runner(options, state.tensors, 1);
  const StepResult r = runner.train(batch(2, 2), {0, 1, 0}, true);
  ASSERT_EQ(r.statistics.at("activation_rms").size(), 3U);
  ASSERT_EQ(r.statistics.at("max_attention_logit").size(), 3U);
  for (double v : r.statistics.at("activation_rms")) EXPECT_GT(v, 0);
}

}  // namespace
}  // namespace graft
