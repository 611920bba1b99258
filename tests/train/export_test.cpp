// Artefacts of a run: each is checked by loading it again, tells what it cost, and leaves nothing
// behind where it cannot be right.

#include "train/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "support/errors.h"
#include "support/temporary.h"
#include "support/tiny_model.h"
#include "train/export_gguf.h"
#include "train/model_folder.h"
#include "train/params_file.h"
#include "train/scorer.h"

namespace graft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

const Compute kCompute{1, DType::kF32, ""};

// A tiny model and an adapter on it that changes much.
class ExportTest : public ::testing::Test {
 protected:
  void write_model(const json& config) {
    make_directories(model());
    testing::write_tiny_model(model(), config);
  }

  // `uneven`: one layer's down_proj has another rank.
  void write_adapter(bool rslora = false, bool uneven = false) {
    ModelState state = load_model_state(model(), DType::kF32);
    AdapterConfig config;
    config.r = 4;
    config.lora_alpha = 8;
    config.use_rslora = rslora;
    config.target_modules.suffixes = {"q_proj", "k_proj", "o_proj", "down_proj"};
    if (uneven) config.rank_pattern = {{"layers\\.0\\.mlp\\.down_proj", 2}};
    attach_adapter(state, config, 1);
    for (const VariableSpec& v : state.adapter.variables) {
      if (!v.name.ends_with(".lora_B")) continue;
      Philox random(5, fnv1a_32(v.name));
      Tensor& b = state.tensors.at(v.name);
      for (int64_t i = 0; i < b.elements(); ++i) {
        b.data<float>()[i] = static_cast<float>(0.2 * random.normal());
      }
    }
    save_adapter(adapter(), config, state.adapter, state.tensors);
  }

  ExportResult run(ExportFormat format, std::optional<DType> dtype = std::nullopt,
                   ParameterLayout layout = {}) {
    return export_model(source(), {format, dtype, output(format), layout});
  }

  Tensor logits(const fs::path& path, const fs::path& with_adapter = "") const {
    ModelState state = load_model_state(path, DType::kF32);
    if (!with_adapter.empty()) attach_adapter_folder(state, with_adapter);
    ScoreInput input;
    input.ids = Tensor::of<int32_t>({1, 6}, {3, 14, 15, 92, 65, 35});
    return score(state, kCompute, input).logits;
  }

  static double distance(const Tensor& a, const Tensor& b) {
    double largest = 0;
    for (int64_t i = 0; i < a.elements(); ++i) {
      largest =
          std::max(largest, static_cast<double>(std::abs(a.data<float>()[i] - b.data<float>()[i])));
    }
    return largest;
  }

  ExportSource source() const { return {model(), adapter(), kCompute, "a card"}; }
  fs::path model() const { return folder_ / "model"; }
  fs::path adapter() const { return folder_ / "adapter"; }
  fs::path output(ExportFormat format) const {
    return folder_ / "out" / std::string(export_format_name(format));
  }
  fs::path gguf() const { return output(ExportFormat::kGguf) / "model.gguf"; }

  TemporaryFolder folder_;
};

TEST_F(ExportTest, EveryFormatOfEveryFamilyComputesTheSame) {
  for (const char* family : {"llama", "qwen2", "qwen3", "mistral"}) {
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", family, tied));
      json config = testing::tiny_config();
      config["model_type"] = family;
      config["tie_word_embeddings"] = tied;
      write_model(config);
      write_adapter(tied);
      const Tensor expected = logits(model(), adapter());
      EXPECT_GT(distance(expected, logits(model())), 0.01);  // the adapter matters
      for (const ExportFormat format : export_formats()) {
        const ExportResult result = run(format);
        EXPECT_LE(result.relative_difference, 1e-5) << export_format_name(format);
        EXPECT_TRUE(fs::exists(result.output / "README.md"));
        EXPECT_EQ(result.rounding_share, 0);
      }
      EXPECT_LE(distance(logits(model(), output(ExportFormat::kPeft)), expected), 1e-5);
      EXPECT_LE(distance(logits(output(ExportFormat::kHuggingFace)), expected), 1e-5);
      EXPECT_LE(distance(logits(gguf()), expected), 1e-5);
      const fs::path gguf_adapter = output(ExportFormat::kGgufAdapter) / "adapter.gguf";
      EXPECT_LE(distance(logits(model(), gguf_adapter), expected), 1e-5);
      // Tied weights stay tied, and are in the file once.
      const auto folder = SafetensorsFile::open(output(ExportFormat::kHuggingFace));
      EXPECT_EQ(folder.contains("lm_head.weight"), !tied);
      EXPECT_EQ(GgufFile::open(gguf()).find("output.weight") != nullptr, !tied);
      EXPECT_EQ(read_model_config(output(ExportFormat::kHuggingFace)).tie_word_embeddings, tied);
      EXPECT_EQ(read_model_config(gguf()).tie_word_embeddings, tied);
    }
  }
}

// A GGUF base: metadata is carried over, and a folder is made of it.
TEST_F(ExportTest, AGgufBaseIsMergedIntoEither) {
  json config = testing::tiny_config();
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 64}};
  write_model(config);
  write_adapter();
  const Tensor expected = logits(model(), adapter());
  run(ExportFormat::kGguf);
  export_model({model(), "", kCompute, ""},
               {.format = ExportFormat::kGguf, .output = folder_ / "base"});
  const fs::path base = folder_ / "base" / "model.gguf";
  const ExportSource of_gguf{base, adapter(), kCompute, ""};
  for (const ExportFormat format : export_formats()) {
    const ExportResult result =
        export_model(of_gguf, {.format = format, .output = folder_ / "again"});
    EXPECT_LE(result.relative_difference, 1e-5) << export_format_name(format);
  }
  EXPECT_LE(distance(logits(folder_ / "again"), expected), 1e-5);
  const ModelConfig folder = read_model_config(folder_ / "again");
  EXPECT_EQ(folder.ropes[0].parameters.type, "llama3");
  EXPECT_EQ(folder.ropes[0].parameters.original_max_position_embeddings, 64);
  const GgufFile merged = GgufFile::open(folder_ / "again" / "model.gguf");
  EXPECT_EQ(merged.keys().size(), GgufFile::open(base).keys().size());
  EXPECT_EQ(merged.tensors()[0].name, GgufFile::open(base).tensors()[0].name);
}

TEST_F(ExportTest, RoundingIsToldAndAllowedFor) {
  write_model(testing::tiny_config());
  write_adapter();
  const ExportResult f16 = run(ExportFormat::kHuggingFace, DType::kF16);
  EXPECT_GT(f16.rounding_share, 0);
  EXPECT_LT(f16.rounding_share, 0.1);
  const ExportResult bf16 = run(ExportFormat::kHuggingFace, DType::kBF16);
  EXPECT_GT(bf16.rounding_share, 4 * f16.rounding_share);
  EXPECT_GT(bf16.relative_difference, f16.relative_difference);
  const auto file = SafetensorsFile::open(output(ExportFormat::kHuggingFace));
  for (const std::string& name : file.names()) EXPECT_EQ(file.find(name)->type, "BF16");
  const json config =
      json::parse(read_text_file(output(ExportFormat::kHuggingFace) / "config.json"));
  EXPECT_EQ(config.value("torch_dtype", ""), "bfloat16");
  // Vectors of GGUF files stay f32.
  run(ExportFormat::kGguf, DType::kF16);
  const GgufFile gguf_file = GgufFile::open(gguf());
  EXPECT_EQ(gguf_file.tensor("blk.0.attn_q.weight").type, GgmlType::kF16);
  EXPECT_EQ(gguf_file.tensor("blk.0.attn_norm.weight").type, GgmlType::kF32);
  EXPECT_EQ(gguf_file.get_u32("general.file_type"), 1U);
  for (const ExportFormat format :
       {ExportFormat::kPeft, ExportFormat::kGgufAdapter, ExportFormat::kParams}) {
    EXPECT_LE(run(format, DType::kBF16).relative_difference, 0.1);
  }
}

// Weights beyond the range of f16 become infinite: the export must not stand.
TEST_F(ExportTest, AMismatchLeavesNothing) {
  write_model(testing::tiny_config());
  const auto file = SafetensorsFile::open(model() / "model.safetensors");
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const std::string& name : file.names()) {
    Tensor t = file.tensor(name).clone();
    if (name == "model.layers.1.mlp.up_proj.weight") t.data<float>()[7] = 1e6F;
    tensors.emplace_back(name, t);
  }
  write_safetensors(model() / "model.safetensors", tensors);
  write_adapter();
  for (const ExportFormat format : {ExportFormat::kHuggingFace, ExportFormat::kGguf}) {
    EXPECT_THAT(error_of([&] { run(format, DType::kF16); }),
                ::testing::AllOf(HasSubstr("differ from the run's"), HasSubstr("--dtype f32")));
    EXPECT_FALSE(fs::exists(output(format)));
    EXPECT_TRUE(fs::is_empty(folder_ / "out"));
    // What stood there before stays.
    run(format);
    const auto before = fs::last_write_time(output(format));
    error_of([&] { run(format, DType::kF16); });
    EXPECT_EQ(fs::last_write_time(output(format)), before);
    fs::remove_all(output(format));
  }
}

TEST_F(ExportTest, RefusesWhatCannotBe) {
  write_model(testing::tiny_config());
  write_adapter();
  EXPECT_THAT(error_of([&] { export_model(source(), {.output = model()}); }),
              HasSubstr("that the export reads"));
  EXPECT_THAT(error_of([&] {
                export_model({model(), "", kCompute, ""}, {.output = folder_ / "x"});
              }),
              HasSubstr("no adapter to export"));
  EXPECT_FALSE(fs::exists(folder_ / "x"));
  EXPECT_THAT(error_of([&] { export_run(folder_.path(), {}); }), HasSubstr("is no run"));
}

TEST_F(ExportTest, UnevenAdaptersExportToo) {
  write_model(testing::tiny_config());
  write_adapter(true, true);
  for (const ExportFormat format : export_formats()) {
    const ParameterLayout unrolled{.layers = ParameterLayout::Layers::kNested};
    EXPECT_LE(run(format, std::nullopt, unrolled).relative_difference, 1e-5);
  }
  EXPECT_THAT(error_of([&] { run(ExportFormat::kParams); }), HasSubstr("do not stack"));
}

TEST_F(ExportTest, ParamsHoldTheTrainedStateInEveryLayout) {
  write_model(testing::tiny_config());
  write_adapter();
  const ModelConfig config = read_model_config(model());
  using Layers = ParameterLayout::Layers;
  for (const Layers layers :
       {Layers::kStacked, Layers::kUnderscore, Layers::kNested, Layers::kNumber}) {
    const ParameterLayout layout{.wrapper = ParameterLayout::Wrapper::kParams, .layers = layers};
    run(ExportFormat::kParams, std::nullopt, layout);
    const ParamsFile file =
        read_params_file(output(ExportFormat::kParams) / "params.safetensors", config);
    ASSERT_TRUE(file.adapter);
    EXPECT_EQ(file.adapter->r, 4);
    const auto stored = SafetensorsFile::open(model());
    for (const std::string& name : stored.names()) {
      const Tensor a = stored.tensor(name), b = file.tensors.at(name);
      ASSERT_EQ(a.shape(), b.shape()) << name;
      EXPECT_EQ(std::memcmp(a.bytes(), b.bytes(), a.size_bytes()), 0) << name;
    }
    EXPECT_EQ(file.tensors.at("model.layers.0.mlp.down_proj.lora_B").shape(), (Shape{32, 4}));
  }
}

}  // namespace
}  // namespace graft
