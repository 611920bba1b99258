// A real model against its reference: SmolLM2-135M-Instruct from its GGUF.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "base/random.h"
#include "formats/safetensors.h"
#include "ir/passes.h"
#include "ir/primitives.h"
#include "support/golden.h"
#include "support/models.h"
#include "support/shared.h"
#include "support/temporary.h"
#include "train/decoder.h"
#include "train/recipe.h"
#include "train/scorer.h"
#include "train/step.h"
#include "train/trained.h"
#include "train/trainer.h"

namespace graft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

#define SMOLLM2_OR_SKIP(model) \
  GRAFT_MODEL_OR_SKIP(model, "GRAFT_SMOLLM2", "SmolLM2-135M-Instruct.Q4_1.gguf")

std::vector<int32_t> ids_of(const SafetensorsFile& file, const std::string& name) {
  const Tensor t = file.tensor(name).as(DType::kS32);
  return {t.data<int32_t>(), t.data<int32_t>() + t.elements()};
}

// Indices of the largest and second largest logit.
std::pair<int32_t, int32_t> top_two(std::span<const float> logits) {
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::partial_sort(order.begin(), order.begin() + 2, order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  return {order[0], order[1]};
}

TEST(RealSmolLM2, ParagraphLossAndNextTokens) {
  SMOLLM2_OR_SKIP(model);
  GRAFT_SHARED_OR_SKIP(path, "real/models/smollm2.safetensors");
  const SafetensorsFile reference = SafetensorsFile::open(path);
  const ModelState state = load_model_state(model, DType::kF32);

  const std::vector<int32_t> paragraph = ids_of(reference, "paragraph.input_ids");
  const auto length = static_cast<int64_t>(paragraph.size());
  ScoreInput input;
  input.ids = Tensor::of<int32_t>({1, length}, paragraph);
  input.labels = input.ids;
  const Scores scores = score(state, {2, DType::kF32, ""}, input);
  double mean = 0;
  const Tensor nll = reference.tensor("paragraph.token_nll");
  for (float v : nll.span<float>())
    mean += static_cast<double>(v) / static_cast<double>(nll.elements());
  EXPECT_NEAR(scores.loss, mean, 1e-4);

  for (int prompt = 0; prompt < 6; ++prompt) {
    const std::string name = "prompt" + std::to_string(prompt);
    const std::vector<int32_t> ids = ids_of(reference, name + ".input_ids");
    const std::vector<int32_t> greedy = ids_of(reference, name + ".greedy_ids");
    const std::vector<int32_t> top = ids_of(reference, name + ".top20_ids");
    const Tensor top_logits = reference.tensor(name + ".top20_logits");
    Decoder decoder(state, {2, DType::kF32, ""});
    std::span<const float> logits = decoder.feed(ids);
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_NEAR(logits[static_cast<size_t>(top[i])], top_logits.data<float>()[i], 1e-3) << name;
    }
    for (size_t t = 0; t < greedy.size(); ++t) {
      const auto [first, second] = top_two(logits);
      const float gap = logits[static_cast<size_t>(first)] - logits[static_cast<size_t>(second)];
      if (gap > 1e-3F) {
        EXPECT_EQ(first, greedy[t]) << name << " token " << t;
      }
      if (t + 1 < greedy.size()) logits = decoder.feed(std::vector<int32_t>{greedy[t]});
    }
  }
}

// The reference's batches as a tokenized data file: one row each, without padding.
void write_rows(const SafetensorsFile& batches, int steps, const fs::path& file) {
  std::ostringstream text;
  for (int step = 0; step < steps; ++step) {
    const std::string name = fmt::format("step{:02}", step);
    const Tensor ids = batches.tensor(name + ".input_ids"),
                 labels = batches.tensor(name + ".labels"),
                 mask = batches.tensor(name + ".attention_mask");
    const int64_t width = ids.shape()[1];
    for (int64_t row = 0; row < ids.shape()[0]; ++row) {
      json line = {{"input_ids", json::array()}, {"labels", json::array()}};
      for (int64_t t = row * width; t < (row + 1) * width && mask.data<int32_t>()[t] != 0; ++t) {
        line["input_ids"].push_back(ids.data<int32_t>()[t]);
        line["labels"].push_back(labels.data<int32_t>()[t]);
      }
      text << line.dump() << "\n";
    }
  }
  write_file_atomically(file, text.str());
}

struct LayerStyle {
  std::string remat;
  bool scan_layers;
  int threads;
};

// The adapter's file and the losses after two steps on rows of random tokens.
std::string trained_bytes(const fs::path& model, const LayerStyle& style) {
  const testing::TemporaryFolder run;
  std::ostringstream rows;
  for (int row = 0; row < 8; ++row) {
    Philox random(3, static_cast<uint32_t>(row));
    json ids = json::array();
    for (int t = 0; t < 60; ++t) ids.push_back(random.below(49152));
    rows << json{{"input_ids", ids}, {"labels", ids}}.dump() << "\n";
  }
  write_file_atomically(run / "train.jsonl", rows.str());
  const std::vector<std::string> settings{
      "model=" + model.string(),
      "output_dir=" + (run / "out").string(),
      "data.train=" + (run / "train.jsonl").string(),
      "data.max_length=64",
      "lora.target_modules=all-linear",
      "training.learning_rate=1e-3",
      "training.max_steps=2",
      "training.per_device_batch_size=2",
      "training.gradient_accumulation_steps=2",
      "training.remat=" + style.remat,
      fmt::format("scan_layers={}", style.scan_layers),
      fmt::format("compute.threads={}", style.threads),
      "compute.dtype=f32",
  };
  run_training(parse_recipe("", "test", settings));
  std::string bytes = read_text_file(run / "out/adapter/adapter_model.safetensors");
  std::ifstream metrics(run / "out/metrics.jsonl");
  for (std::string text; std::getline(metrics, text);) {
    const json line = json::parse(text);
    bytes += line.at("loss").dump() + " " + line.at("grad_norm").dump() + "\n";
  }
  return bytes;
}

TEST(RealSmolLM2, TheSameBitsHoweverItIsRun) {
  SMOLLM2_OR_SKIP(model);
  const std::string reference = trained_bytes(model, {"minimal", true, 2});
  for (const LayerStyle& style :
       {LayerStyle{"minimal", true, 1}, LayerStyle{"minimal", false, 2},
        LayerStyle{"none", true, 2}, LayerStyle{"full", true, 2}, LayerStyle{"full", false, 1}}) {
    EXPECT_TRUE(trained_bytes(model, style) == reference)
        << style.remat << (style.scan_layers ? " scanned " : " unrolled ") << style.threads;
  }
}

// What another executor has to know is the table of docs/ir.md, which DocumentTest holds to
// primitives(); shapes are static by construction, and there is no operation that calls the host.
TEST(RealSmolLM2, TheWholeStepIsMadeOfDocumentedPrimitives) {
  SMOLLM2_OR_SKIP(model);
  ModelState state = load_model_state(model, DType::kBF16);
  AdapterConfig config;
  config.lora_dropout = 0.1;
  config.target_modules.expression = "all-linear";
  attach_adapter(state, config, 1);
  StepOptions options = adapter_step_options(state);
  options.dtype = DType::kBF16;
  options.statistics = true;
  const auto step = decompose(*build_train_step(options, {2, 4, 256, 1024}));
  const auto documented = primitives();
  const std::vector<const Op*> used = operations(*step);
  EXPECT_GT(used.size(), 20U);
  for (const Op* op : used) {
    EXPECT_TRUE(std::find(documented.begin(), documented.end(), op) != documented.end())
        << op->name;
  }
}

TEST(RealSmolLM2, LoraCurve) {
  SMOLLM2_OR_SKIP(model);
  GRAFT_SHARED_OR_SKIP(folder, "real/smollm2_lora_curve");
  const testing::TemporaryFolder run;
  write_rows(SafetensorsFile::open(folder / "batches.safetensors"), 15, run / "train.jsonl");
  const std::vector<std::string> settings{
      "model=" + model.string(),
      "output_dir=" + (run / "out").string(),
      "data.train=" + (run / "train.jsonl").string(),
      "data.max_length=128",
      "lora.r=8",
      "lora.lora_alpha=16",
      "lora.target_modules=all-linear",
      "lora.init_adapter=" + (folder / "adapter_init").string(),
      "training.learning_rate=1e-3",
      "training.lr_scheduler_type=constant",
      "training.max_steps=15",
      "training.per_device_batch_size=4",
      "training.shuffle=false",
      "compute.dtype=f32",
  };
  const TrainingSummary summary = run_training(parse_recipe("", "test", settings));
  EXPECT_EQ(summary.steps, 15);
  // The plan is exact but for what the process holds besides.
  EXPECT_NEAR(static_cast<double>(summary.measured_peak_bytes),
              static_cast<double>(summary.planned_peak_bytes),
              0.03 * static_cast<double>(summary.planned_peak_bytes));

  const json curve = json::parse(read_text_file(folder / "curve.json"));
  std::ifstream metrics(run / "out/metrics.jsonl");
  size_t step = 0;
  for (std::string text; std::getline(metrics, text); ++step) {
    const json line = json::parse(text);
    const json& expected = curve.at("steps").at(step);
    testing::expect_close(line.at("loss"), expected.at("loss"), step == 0 ? 1e-5 : 1e-3,
                          fmt::format("loss of step {}", step));
    testing::expect_close(line.at("grad_norm"), expected.at("grad_norm"), 1e-3,
                          fmt::format("norm of step {}", step));
  }
  EXPECT_EQ(step, 15U);
  // Norms, not entries: Adam turns a gradient that is nearly zero into a full step whose sign is
  // rounding.
  const SafetensorsFile adapter =
      SafetensorsFile::open(run / "out/adapter/adapter_model.safetensors");
  int compared = 0;
  for (const auto& [name, norm] : curve.at("final_norms").items()) {
    double squares = 0;
    const Tensor value = adapter.tensor("base_model.model.model." + name);
    for (float v : value.span<float>()) squares += static_cast<double>(v) * static_cast<double>(v);
    testing::expect_close(std::sqrt(squares), norm, 1e-3, name);
    ++compared;
  }
  EXPECT_EQ(compared, 420);
}

}  // namespace
}  // namespace graft
