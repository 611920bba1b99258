// Training on packed bases: the same numbers as on their dequantised copies.

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "formats/packed_blocks.h"
#include "models/layout.h"
#include "support/golden.h"
#include "support/models.h"
#include "support/shared.h"
#include "support/step_graph.h"
#include "support/temporary.h"
#include "train/merged_weights.h"
#include "train/model_folder.h"
#include "train/quantized_folder.h"
#include "train/runner.h"
#include "train/scorer.h"
#include "train/start.h"
#include "train/trained.h"

namespace graft {
namespace {

using testing::expect_close;
using testing::first_value;
namespace fs = std::filesystem;

const Compute kCompute{2, DType::kF32, ""};

// The same state with every packed matrix expanded.
ModelState dequantized(const ModelState& state) {
  ModelState copy = state;
  for (VariableSpec& v : copy.parameters) {
    if (!state.packed.contains(v.name)) continue;
    copy.tensors[v.name] = dense_parameter(state, v.name);
    v.dtype = DType::kF32;
    v.shape = dense_shape(state, v);
  }
  copy.packed.clear();
  return copy;
}

testing::Outputs gradients_of(const ModelState& state, const Batch& batch) {
  const auto graph = build_gradients(adapter_step_options(state), shape_of(batch));
  return testing::run_on(kCompute, *graph, testing::graph_inputs(*graph, state.tensors, batch));
}

void expect_equal_gradients(const ModelState& state, const Batch& batch, double tolerance,
                            const std::string& what) {
  const auto packed = gradients_of(state, batch);
  const auto dense = gradients_of(dequantized(state), batch);
  ASSERT_EQ(packed.size(), dense.size());
  for (const auto& [name, value] : dense) {
    expect_close(packed.at(name), value, tolerance, what + " " + name);
  }
}

QuantizationOptions options_for(QuantizationScheme scheme, int64_t block_size = 0,
                                bool double_quant = false,
                                QuantizationLayout layout = QuantizationLayout::kAuto) {
  QuantizationOptions options;
  options.scheme = scheme;
  options.block_size = block_size;
  options.double_quant = double_quant;
  options.layout = layout;
  return options;
}

class GoldenLlama {
 public:
  static fs::path folder() { return testing::shared_path("golden/llama_a"); }
  static Batch batch() {
    const SafetensorsFile file = SafetensorsFile::open(folder() / "reference.safetensors");
    return testing::golden_batch(testing::golden_examples(file));
  }
  static ModelState load(const QuantizationOptions& quantization) {
    ModelState state = load_model_state(folder(), DType::kF32, {.quantization = quantization});
    attach_adapter_folder(state, folder() / "adapter");
    return state;
  }
};

std::vector<QuantizationOptions> every_scheme() {
  using Scheme = QuantizationScheme;
  std::vector<QuantizationOptions> all;
  for (const Scheme scheme : {Scheme::kNf4, Scheme::kInt8, Scheme::kInt4, Scheme::kFp8}) {
    all.push_back(options_for(scheme));
  }
  all.push_back(options_for(Scheme::kNf4, 32, true));
  all.push_back(options_for(Scheme::kNf4, 32, false, QuantizationLayout::kQwix));
  all.push_back(options_for(Scheme::kInt8, 0, false, QuantizationLayout::kBitsAndBytes));
  return all;
}

TEST(QuantizedBase, CheckpointOfBitsandbytesEqualsReference) {
  GRAFT_SHARED_OR_SKIP(folder, "golden/nf4/llama_a_4bit");
  GRAFT_SHARED_OR_SKIP(llama, "golden/llama_a");
  ModelState state = load_model_state(folder, DType::kF32);
  EXPECT_EQ(state.packed.size(), 14U);
  for (const auto& [name, layout] : state.packed) {
    EXPECT_EQ(layout.kind, PackedKind::kNf4Double) << name;
  }
  const SafetensorsFile inputs = SafetensorsFile::open(llama / "reference.safetensors");
  const SafetensorsFile reference = SafetensorsFile::open(folder / "reference.safetensors");
  const Tensor ids = inputs.tensor("input_ids");
  const int64_t length = ids.shape()[1];
  ScoreInput input;
  input.ids = Tensor::of<int32_t>({1, length}, {ids.data<int32_t>(), ids.data<int32_t>() + length});
  expect_close(score(state, kCompute, input).logits, reference.tensor("logits"), 1e-4, "logits");
  attach_adapter_folder(state, llama / "adapter");
  expect_close(score(state, kCompute, input).logits, reference.tensor("lora_logits"), 1e-4,
               "lora_logits");
  for (const auto& [name, gradient] : gradients_of(state, GoldenLlama::batch())) {
    if (name == step_output::kLoss) {
      expect_close(static_cast<double>(gradient.data<float>()[0]),
                   first_value(reference, "lora_loss"), 1e-5, "loss");
      continue;
    }
    const std::string key = "grad.base_model.model." + name.substr(9) + ".weight";
    expect_close(gradient, reference.tensor(key), 1e-4, key);
  }
}

TEST(QuantizedBase, GradientsEqualThoseOfTheDequantizedCopy) {
  GRAFT_SHARED_OR_SKIP(folder, "golden/llama_a");
  for (const QuantizationOptions& options : every_scheme()) {
    const ModelState state = GoldenLlama::load(options);
    EXPECT_EQ(state.packed.size(), 14U);
    EXPECT_EQ(state.quantization_error.size(), 14U);
    expect_equal_gradients(state, GoldenLlama::batch(), 1e-5,
                           std::string(quantization_scheme_name(options.scheme)));
  }
}

TEST(QuantizedBase, TrainingLeavesThePackedBaseAsItWas) {
  GRAFT_SHARED_OR_SKIP(folder, "golden/llama_a");
  for (const QuantizationOptions& quantization : every_scheme()) {
    ModelState state = GoldenLlama::load(quantization);
    std::map<std::string, Tensor> before;
    for (const auto& [name, layout] : state.packed) before[name] = state.tensors.at(name).clone();
    const StepOptions options = adapter_step_options(state);
    for (const std::string& name : options.trained) {
      state.tensors[name] = state.tensors.at(name).clone();
    }
    begin_optimizer(state, options.trained, std::nullopt);
    StepRunner runner(options, state.tensors, 2);
    double first = 0, last = 0;
    for (int64_t step = 1; step <= 4; ++step) {
      last = runner.train(GoldenLlama::batch(), {1e-2, step, 0}).loss;
      if (step == 1) first = last;
    }
    EXPECT_LT(last, first);
    for (const auto& [name, bytes] : before) {
      EXPECT_EQ(std::memcmp(bytes.bytes(), state.tensors.at(name).bytes(), bytes.size_bytes()), 0)
          << name;
    }
  }
}

// What graft writes is, tensor by tensor, what bitsandbytes writes.
TEST(QuantizedBase, WrittenFolderEqualsThatOfBitsandbytes) {
  GRAFT_SHARED_OR_SKIP(golden, "golden/nf4/llama_a_4bit");
  const testing::TemporaryFolder folder;
  const QuantizedFolder result = write_quantized_folder(
      folder / "q", GoldenLlama::folder(), options_for(QuantizationScheme::kNf4, 0, true));
  EXPECT_EQ(result.modules, 14);
  const SafetensorsFile expected = SafetensorsFile::open(golden);
  const SafetensorsFile actual = SafetensorsFile::open(folder / "q");
  EXPECT_EQ(actual.names().size(), expected.names().size());
  for (const std::string& name : expected.names()) {
    ASSERT_TRUE(actual.contains(name)) << name;
    EXPECT_EQ(actual.find(name)->shape.size(), expected.find(name)->shape.size()) << name;
    const auto a = actual.bytes(name), b = expected.bytes(name);
    if (name.find("quant_state") != std::string::npos) {
      const auto text = [](std::span<const std::byte> bytes) {
        return nlohmann::json::parse(
            std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
      };
      EXPECT_EQ(text(a), text(b)) << name;
      continue;
    }
    ASSERT_EQ(a.size(), b.size()) << name;
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size()), 0) << name;
  }
  const ModelState state = load_model_state(folder / "q", DType::kF32);
  EXPECT_EQ(state.packed.size(), 14U);
  EXPECT_THROW(load_model_state(folder / "q", DType::kF32,
                                {.quantization = options_for(QuantizationScheme::kNf4)}),
               Error);
}

TEST(QuantizedBase, KeptModulesStayDense) {
  GRAFT_SHARED_OR_SKIP(folder, "golden/llama_a");
  QuantizationOptions options = options_for(QuantizationScheme::kNf4);
  options.keep.suffixes = {"down_proj"};
  EXPECT_EQ(GoldenLlama::load(options).packed.size(), 12U);
  options.modules.suffixes = {"down_proj", "q_proj"};
  EXPECT_EQ(GoldenLlama::load(options).packed.size(), 2U);
  options.keep.suffixes = {"no_such"};
  EXPECT_THROW(GoldenLlama::load(options), Error);
}

TEST(QuantizedBase, TilesThatDoNotDivideAreRefusedByName) {
  GRAFT_SHARED_OR_SKIP(folder, "golden/llama_a");
  try {
    GoldenLlama::load(options_for(QuantizationScheme::kNf4, 0, false, QuantizationLayout::kQwix));
    ADD_FAILURE();
  } catch (const Error& error) {  // 96 is no multiple of 64
    EXPECT_NE(std::string(error.what()).find("down_proj"), std::string::npos) << error.what();
  }
}

TEST(QuantizedBase, MergesOntoTheDequantizedBase) {
  GRAFT_SHARED_OR_SKIP(golden, "golden/nf4/llama_a_4bit");
  ModelState state = load_model_state(golden, DType::kF32);
  attach_adapter_folder(state, GoldenLlama::folder() / "adapter");
  const testing::TemporaryFolder folder;
  MergedWeights weights(BaseWeights::open(golden, state.config), state.adapter, state.tensors);
  save_model_folder(folder / "m", state, nullptr,
                    [&](const std::string& name) { return weights.load(name, DType::kF32); });
  const ModelState merged = load_model_state(folder / "m", DType::kF32);
  EXPECT_TRUE(merged.packed.empty());
  const SafetensorsFile inputs =
      SafetensorsFile::open(GoldenLlama::folder() / "reference.safetensors");
  ScoreInput input;
  input.ids = inputs.tensor("input_ids");
  expect_close(score(merged, kCompute, input).logits, score(state, kCompute, input).logits, 1e-5,
               "merged");
}

// A real GGUF of mixed formats, as it lies in the file.
TEST(QuantizedBase, GgufInPlaceEqualsItsDequantizedCopy) {
  GRAFT_MODEL_OR_SKIP(model, "GRAFT_SMOLLM2", "SmolLM2-135M-Instruct.Q4_1.gguf");
  ModelState state = load_model_state(model, DType::kF32);
  EXPECT_EQ(state.packed.size(), 211U);
  EXPECT_EQ(state.packed.at(kEmbeddingName).kind, PackedKind::kQ8_0);
  AdapterConfig config;
  config.r = 4;
  config.lora_alpha = 8;
  config.target_modules.expression = "all-linear";
  attach_adapter(state, config, 3);
  for (const VariableSpec& v : state.adapter.variables) {  // B is zero in a fresh adapter
    if (v.name.ends_with("lora_B")) {
      state.tensors[v.name] = initial_adapter_value(
          {v.name.substr(0, v.name.size() - 1) + "A", v.kind, v.dtype, v.shape, v.logical_axes}, 5);
    }
  }
  std::vector<TokenizedExample> examples(1);
  for (int32_t i = 0; i < 40; ++i) {
    examples[0].ids.push_back(100 + 37 * i);
    examples[0].trained.push_back(i > 3);
  }
  expect_equal_gradients(state, testing::golden_batch(examples), 1e-5, "Q4_1");
}

}  // namespace
}  // namespace graft
