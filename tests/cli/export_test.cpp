// graft export and merge as a person or a script meets them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/program.h"
#include "support/temporary.h"
#include "support/tiny_model.h"

namespace graft {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::run_program;
using testing::TemporaryFolder;

ProgramResult graft(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), GRAFT_BINARY);
  return run_program(std::move(arguments));
}

class ExportCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    make_directories(folder_ / "model");
    testing::write_tiny_model(folder_ / "model");
    std::string rows;
    for (int i = 0; i < 4; ++i) {
      rows += nlohmann::json{{"input_ids", {3 + i, 14, 15, 92, 65, 35}}}.dump() + "\n";
    }
    write_file_atomically(folder_ / "rows.jsonl", rows);
    write_file_atomically(folder_ / "recipe.yaml", "");
  }

  ProgramResult train(std::vector<std::string> overrides) {
    std::vector<std::string> line = {"train",
                                     (folder_ / "recipe.yaml").string(),
                                     "model=" + (folder_ / "model").string(),
                                     "output_dir=" + run().string(),
                                     "data.train=" + (folder_ / "rows.jsonl").string(),
                                     "training.max_steps=3",
                                     "training.learning_rate=1e-2"};
    line.insert(line.end(), overrides.begin(), overrides.end());
    return graft(line);
  }

  fs::path run() const { return folder_ / "run"; }
  TemporaryFolder folder_;
};

TEST_F(ExportCommand, TrainingExportsAtItsEnd) {
  const ProgramResult trained = train({"export=[peft, hf, gguf-adapter, gguf, params]"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  for (const char* file :
       {"peft/adapter_config.json", "peft/README.md", "hf/config.json", "hf/model.safetensors",
        "gguf-adapter/adapter.gguf", "gguf/model.gguf", "params/params.safetensors"}) {
    EXPECT_TRUE(fs::exists(run() / "export" / file)) << file;
  }
  const std::string card = read_text_file(run() / "export" / "peft" / "README.md");
  for (const std::string& said :
       {(folder_ / "model").string(), (folder_ / "rows.jsonl").string(),
        std::string("max_steps: 3"), std::string("| training loss, last |"),
        std::string("library_name: peft")}) {
    EXPECT_THAT(card, HasSubstr(said));
  }
  const auto audit = nlohmann::json::parse(read_text_file(run() / "audit.json"));
  EXPECT_GT(audit.at("plan").at("export_peak_bytes"), 0);
}

TEST_F(ExportCommand, TellsWhatItFound) {
  ASSERT_EQ(train({}).exit_code, 0);
  const std::string out = (folder_ / "out").string();
  const ProgramResult result = graft(
      {"export", run().string(), "--format", "gguf", "--dtype", "f16", "--output", out, "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("logits differ from the run's by at most"));
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("output"), out);
  EXPECT_THAT(json.at("files").get<std::vector<std::string>>(),
              ::testing::ElementsAre("README.md", "model.gguf"));
  EXPECT_LE(json.at("relative_difference"), json.at("allowed_difference"));
  EXPECT_GT(json.at("rounding_share"), 0);

  EXPECT_EQ(graft({"export", run().string(), "--format", "onnx"}).exit_code, 2);
  EXPECT_EQ(graft({"export", run().string(), "--format", "hf", "--layout", "0"}).exit_code, 2);
  const ProgramResult none = graft({"export", (folder_ / "model").string(), "--format", "hf"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.last_error_line(), HasSubstr("is no run"));
}

TEST_F(ExportCommand, AFullRunHasWeightsButNoAdapter) {
  EXPECT_THAT(train({"training.method=full", "export=[peft]"}).last_error_line(),
              HasSubstr("which has no adapter"));
  const ProgramResult trained = train({"training.method=full", "export=[gguf, hf, params]"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const ProgramResult adapter = graft({"export", run().string(), "--format", "gguf-adapter"});
  EXPECT_EQ(adapter.exit_code, 1);
  EXPECT_THAT(adapter.last_error_line(), HasSubstr("no adapter to export"));
}

// What a format cannot state is known before training, and said there.
TEST_F(ExportCommand, AnImpossibleExportStopsTheRunBeforeItBegins) {
  nlohmann::json config = testing::tiny_config();
  config["model_type"] = "mistral";
  config["sliding_window"] = 8;
  testing::write_tiny_model(folder_ / "model", config);
  const ProgramResult trained = train({"export=gguf"});
  EXPECT_EQ(trained.exit_code, 1);
  EXPECT_THAT(trained.err, HasSubstr("sliding window of 8"));
  EXPECT_FALSE(fs::exists(run() / "adapter"));
}

TEST_F(ExportCommand, MergeConvertsWithoutAnAdapter) {
  const std::string out = (folder_ / "out").string();
  const ProgramResult result = graft({"merge", "--model", (folder_ / "model").string(), "--output",
                                      out, "--format", "gguf", "--dtype", "bf16"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(graft({"inspect", out + "/model.gguf"}).exit_code, 0);
}

}  // namespace
}  // namespace graft
