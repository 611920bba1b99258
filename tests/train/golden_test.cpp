// Every number of the golden models of the supported families, on the native executor and through
// PJRT; and the decomposed step of one of them on the reference interpreter.

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/file.h"
#include "ir/interpreter.h"
#include "ir/passes.h"
#include "pjrt/wheels.h"
#include "support/golden.h"
#include "support/shared.h"
#include "support/step_graph.h"
#include "support/temporary.h"
#include "train/merged_weights.h"
#include "train/model_folder.h"
#include "train/runner.h"
#include "train/scorer.h"
#include "train/start.h"
#include "train/trained.h"

namespace graft {
namespace {

using testing::expect_close;
using testing::first_value;
using testing::graph_inputs;
using testing::Outputs;
using testing::run_on;
namespace fs = std::filesystem;

constexpr double kTolerance = 1e-4;
// Adam makes a full step of a gradient that is nearly zero, whose sign is rounding.
constexpr double kCurveTolerance = 1e-3;
const Compute kCompute{2, DType::kF32, ""};

struct Golden {
  std::string family;  // folder name without "_a"
  std::string config;  // file that describes it
  std::string executor = "native";

  Compute compute() const { return {2, DType::kF32, "", executor}; }
};

// The golden's folder with the chosen description as its config.json.
class GoldenModel {
 public:
  explicit GoldenModel(const Golden& golden)
      : source_(testing::shared_path("golden/" + golden.family + "_a")) {
    fs::create_symlink(fs::absolute(source_ / "model.safetensors"), folder_ / "model.safetensors");
    fs::copy_file(source_ / golden.config, folder_ / "config.json");
  }
  ModelState load() const { return load_model_state(folder_.path(), DType::kF32); }
  ModelState load_with_adapter() const {
    ModelState state = load();
    attach_adapter_folder(state, source_ / "adapter");
    return state;
  }
  SafetensorsFile reference() const {
    return SafetensorsFile::open(source_ / "reference.safetensors");
  }
  nlohmann::json meta() const {
    return nlohmann::json::parse(read_text_file(source_ / "meta.json"));
  }
  const fs::path& folder() const { return folder_.path(); }

 private:
  fs::path source_;
  testing::TemporaryFolder folder_;
};

std::vector<std::string> sorted_names(const std::vector<VariableSpec>& specs) {
  std::vector<std::string> names;
  for (const VariableSpec& v : specs) names.push_back(v.name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string file_key(const std::string& variable) {
  return "base_model.model." + variable + ".weight";
}

Outputs run_native(const Graph& graph, const std::vector<Tensor>& inputs) {
  return run_on(kCompute, graph, inputs);
}

Outputs run_interpreter(const Graph& graph, const std::vector<Tensor>& inputs) {
  const std::vector<Tensor> values = interpret(*decompose(graph), inputs);
  Outputs outputs;
  for (size_t i = 0; i < values.size(); ++i) outputs[graph.outputs()[i].name] = values[i];
  return outputs;
}

Outputs gradients_of(const ModelState& state, const std::vector<std::string>& trained,
                     const Batch& batch,
                     const std::function<Outputs(const Graph&, const std::vector<Tensor>&)>& run) {
  StepOptions options = adapter_step_options(state);
  options.trained = trained;
  const auto graph = build_gradients(options, shape_of(batch));
  return run(*graph, graph_inputs(*graph, state.tensors, batch));
}

double norm(const Tensor& t) {
  double sum = 0;
  for (float v : t.span<float>()) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

ScoreInput score_input(const SafetensorsFile& file) {
  ScoreInput input;
  input.ids = file.tensor("input_ids").clone();
  input.labels = file.tensor("labels").clone();
  if (file.contains("lengths")) input.lengths = file.tensor("lengths").clone();
  return input;
}

void expect_row_logits(const Scores& scores, const Tensor& reference, const std::string& what) {
  const int64_t tokens = reference.shape()[0];
  Tensor row =
      scores.logits.rows(0, 1).reshaped({scores.logits.shape()[1], scores.logits.shape()[2]});
  expect_close(row.rows(0, tokens), reference, kTolerance, what);
}

class GoldenTest : public ::testing::TestWithParam<Golden> {
 protected:
  void SetUp() override {
    GRAFT_SHARED_OR_SKIP(folder, "golden/" + GetParam().family + "_a");
    if (GetParam().executor != "native" && !pjrt::is_installed(pjrt::plugin_kind("cpu"))) {
      GTEST_SKIP() << "THE CPU PLUGIN IS NOT INSTALLED: run graft plugins install cpu";
    }
  }
  static Outputs run(const Graph& graph, const std::vector<Tensor>& inputs) {
    return run_on(GetParam().compute(), graph, inputs);
  }
};

TEST_P(GoldenTest, LogitsAndLossOfTheBaseModel) {
  const GoldenModel golden(GetParam());
  const SafetensorsFile reference = golden.reference();
  const Scores scores = score(golden.load(), GetParam().compute(), score_input(reference));
  expect_row_logits(scores, reference.tensor("logits"), "logits");
  expect_close(scores.loss, first_value(reference, "loss"), kTolerance, "loss");
}

TEST_P(GoldenTest, FullGradientNorms) {
  const GoldenModel golden(GetParam());
  const SafetensorsFile reference = golden.reference();
  const ModelState state = golden.load();
  const auto trained = sorted_names(state.parameters);
  const Batch batch = testing::golden_batch(testing::golden_examples(reference));
  const Outputs outputs = gradients_of(state, trained, batch, run);
  for (const std::string& name : trained) {
    expect_close(norm(outputs.at("gradient." + name)), first_value(reference, "gradnorm." + name),
                 kTolerance, name);
  }
}

TEST_P(GoldenTest, AdapterLogitsLossAndGradients) {
  const GoldenModel golden(GetParam());
  const SafetensorsFile reference = golden.reference();
  const ModelState state = golden.load_with_adapter();
  const Scores scores = score(state, GetParam().compute(), score_input(reference));
  expect_row_logits(scores, reference.tensor("lora_logits"), "lora_logits");
  expect_close(scores.loss, first_value(reference, "lora_loss"), kTolerance, "lora_loss");
  const auto trained = sorted_names(state.adapter.variables);
  const Batch batch = testing::golden_batch(testing::golden_examples(reference));
  const Outputs outputs = gradients_of(state, trained, batch, run);
  expect_close(outputs.at("loss").data<float>()[0], first_value(reference, "lora_loss"), kTolerance,
               "loss");
  for (const std::string& name : trained) {
    expect_close(outputs.at("gradient." + name), reference.tensor("grad." + file_key(name)),
                 kTolerance, name);
  }
}

// Ten steps on one batch; losses, norms and final weights.
void expect_curve(ModelState state, const SafetensorsFile& batch_file,
                  const SafetensorsFile& reference, const std::vector<double>& rates, bool full,
                  const Compute& compute = kCompute) {
  StepOptions options = adapter_step_options(state);
  options.trained = sorted_names(full ? state.parameters : state.adapter.variables);
  options.adamw.weight_decay = 0.01;
  for (const std::string& name : options.trained) {
    state.tensors[name] = state.tensors.at(name).clone();
  }
  begin_optimizer(state, options.trained, std::nullopt);
  StepRunner runner(options, state.tensors, make_executor(compute));
  const Batch batch = testing::golden_batch(testing::golden_examples(batch_file));
  const Tensor losses = reference.tensor("losses"), norms = reference.tensor("grad_norms");
  for (size_t i = 0; i < rates.size(); ++i) {
    const StepResult r = runner.train(batch, {rates[i], static_cast<int64_t>(i) + 1, 0});
    const std::string step = "step " + std::to_string(i);
    expect_close(r.loss, losses.data<float>()[i], kTolerance, "loss of " + step);
    expect_close(r.grad_norm, norms.data<float>()[i], kCurveTolerance, "norm of " + step);
    EXPECT_TRUE(r.finite);
  }
  runner.fetch();
  for (const std::string& name : options.trained) {
    expect_close(state.tensors.at(name),
                 reference.tensor("final." + (full ? name : file_key(name))), kCurveTolerance,
                 name);
  }
}

TEST_P(GoldenTest, TrainingCurve) {
  const GoldenModel golden(GetParam());
  const SafetensorsFile reference = golden.reference();
  expect_curve(golden.load_with_adapter(), reference, reference,
               golden.meta().at("lr").get<std::vector<double>>(), false, GetParam().compute());
}

TEST_P(GoldenTest, MergedFolderLoadsByItself) {
  const GoldenModel golden(GetParam());
  const SafetensorsFile reference = golden.reference();
  const ModelState state = golden.load_with_adapter();
  const testing::TemporaryFolder merged;
  MergedWeights weights(BaseWeights::open(state.path, state.config), state.adapter, state.tensors);
  save_model_folder(merged.path(), state, nullptr,
                    [&](const std::string& name) { return weights.load(name, DType::kF32); });
  const Scores scores = score(load_model_state(merged.path(), DType::kF32), GetParam().compute(),
                              score_input(reference));
  expect_row_logits(scores, reference.tensor("merged_logits"), "merged_logits");
}

std::vector<Golden> goldens() {
  std::vector<Golden> list;
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3"}) {
    for (const char* config : {"config.json", "config.legacy.json"})
      list.push_back({family, config});
    list.push_back({family, "config.json", "pjrt:cpu"});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTest, ::testing::ValuesIn(goldens()),
                         [](const ::testing::TestParamInfo<Golden>& info) {
                           return info.param.family +
                                  (info.param.config == "config.json" ? "" : "_legacy") +
                                  (info.param.executor == "native" ? "" : "_pjrt");
                         });

const Golden kLlama{"llama", "config.json"};

TEST(GoldenTraining, AccumulationIsNormalisedByAllTrainedTokens) {
  GRAFT_SHARED_OR_SKIP(folder, "golden/llama_a_train");
  const GoldenModel golden(kLlama);
  const SafetensorsFile reference = SafetensorsFile::open(folder / "accumulation.safetensors");
  const ModelState state = golden.load_with_adapter();
  const auto trained = sorted_names(state.adapter.variables);
  const Batch batch = testing::golden_batch(testing::golden_examples(golden.reference()), true);
  ASSERT_EQ(batch.micro_batches(), 2);
  const Outputs outputs = gradients_of(state, trained, batch, run_native);
  expect_close(outputs.at("loss").data<float>()[0], first_value(reference, "by_tokens.loss"),
               kTolerance, "loss");
  for (const std::string& name : trained) {
    expect_close(outputs.at("gradient." + name),
                 reference.tensor("by_tokens.grad." + file_key(name)), kTolerance, name);
  }
}

TEST(GoldenTraining, PackedSequencesDoNotSeeEachOther) {
  GRAFT_SHARED_OR_SKIP(folder, "golden/llama_a_train");
  const GoldenModel golden(kLlama);
  const SafetensorsFile reference = SafetensorsFile::open(folder / "packed.safetensors");
  const ModelState state = golden.load_with_adapter();
  ScoreInput input = score_input(reference);
  input.segments = reference.tensor("segment_ids").clone();
  input.positions = reference.tensor("position_ids").clone();
  const Scores scores = score(state, kCompute, input);
  expect_row_logits(scores, reference.tensor("lora_logits"), "lora_logits");
  expect_close(scores.loss, first_value(reference, "lora_loss"), kTolerance, "lora_loss");

  // The same two sequences through the data layer's packing.
  const TokenizedExample whole = testing::golden_examples(reference)[0];
  std::vector<TokenizedExample> parts(2);
  const int32_t* segments = reference.tensor("segment_ids").data<int32_t>();
  for (size_t t = 0; t < whole.ids.size(); ++t) {
    TokenizedExample& part = parts[static_cast<size_t>(segments[t] - 1)];
    part.ids.push_back(whole.ids[t]);
    part.trained.push_back(whole.trained[t]);
  }
  const std::vector<std::vector<const TokenizedExample*>> sequence{{&parts[0], &parts[1]}};
  const Batch batch = make_batch(sequence, 1, 1);
  const auto trained = sorted_names(state.adapter.variables);
  const Outputs outputs = gradients_of(state, trained, batch, run_native);
  for (const std::string& name : trained) {
    expect_close(outputs.at("gradient." + name), reference.tensor("grad." + file_key(name)),
                 kTolerance, name);
  }
}

TEST(GoldenTraining, FullFineTuning) {
  GRAFT_SHARED_OR_SKIP(folder, "golden/llama_a_train");
  const GoldenModel golden(kLlama);
  const auto meta = nlohmann::json::parse(read_text_file(folder / "meta.json"));
  expect_curve(golden.load(), golden.reference(),
               SafetensorsFile::open(folder / "full.safetensors"),
               meta.at("full_lr").get<std::vector<double>>(), true);
}

TEST(GoldenTraining, RankStabilisedScaling) {
  GRAFT_SHARED_OR_SKIP(folder, "golden/llama_a_train/rslora");
  const GoldenModel golden(kLlama);
  const SafetensorsFile reference = SafetensorsFile::open(folder / "reference.safetensors");
  ModelState state = golden.load();
  attach_adapter_folder(state, folder / "adapter");
  const SafetensorsFile inputs = golden.reference();
  const Scores scores = score(state, kCompute, score_input(inputs));
  expect_row_logits(scores, reference.tensor("lora_logits"), "lora_logits");
  expect_curve(state, inputs, reference, golden.meta().at("lr").get<std::vector<double>>(), false);
}

TEST(GoldenTraining, InterpreterOfTheDecomposedStepAgrees) {
  GRAFT_SHARED_OR_SKIP(folder, "golden/llama_a");
  const GoldenModel golden(kLlama);
  const SafetensorsFile reference = golden.reference();
  const ModelState state = golden.load_with_adapter();
  const auto trained = sorted_names(state.adapter.variables);
  const Batch batch = testing::golden_batch(testing::golden_examples(reference));
  const Outputs outputs = gradients_of(state, trained, batch, run_interpreter);
  expect_close(outputs.at("loss").data<float>()[0], first_value(reference, "lora_loss"), kTolerance,
               "loss");
  for (const std::string& name : trained) {
    expect_close(outputs.at("gradient." + name), reference.tensor("grad." + file_key(name)),
                 kTolerance, name);
  }
}

}  // namespace
}  // namespace graft
