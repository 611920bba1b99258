// What goes wrong around the program: odd command lines, files and streams. Never a signal, never
// a wrong result in silence.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "data/tiny_text_model.h"
#include "formats/safetensors.h"
#include "support/program.h"
#include "support/temporary.h"
#include "support/tiny_model.h"

namespace graft {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::run_program;
using ::testing::StartsWith;

constexpr const char* kTokenRows = R"({"input_ids": [1, 2, 3, 4, 5, 6]}
{"input_ids": [7, 8, 9, 10]}
)";

// A tiny model with a tokenizer, and a recipe for two steps on rows of token ids.
class Robust : public ::testing::Test {
 protected:
  void SetUp() override {
    json config = testing::tiny_config(2);
    config["vocab_size"] = 300;
    std::filesystem::create_directory(folder_ / "model");
    testing::write_tiny_model(folder_ / "model", config);
    testing::write_tiny_tokenizer(folder_ / "model");
    write_file_atomically(folder_ / "rows.jsonl", kTokenRows);
    write_file_atomically(folder_ / "r.yaml",
                          "model: model\noutput_dir: out\ndata:\n  train: rows.jsonl\n"
                          "training:\n  max_steps: 2\n");
  }

  ProgramResult graft(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), GRAFT_BINARY);
    return run_program(std::move(arguments), folder_.path());
  }
  ProgramResult shell(const std::string& line) {
    return run_program(
        {"/bin/sh", "-c", "graft() { " + std::string(GRAFT_BINARY) + " \"$@\"; }; " + line},
        folder_.path());
  }
  void refused(const ProgramResult& result, int exit_code, const std::string& message) {
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.last_error_line(), AllOf(StartsWith("error: "), HasSubstr(message)));
  }

  testing::TemporaryFolder folder_;
};

TEST_F(Robust, AValueThatCannotBeIsAWrongCommandLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"eval", "--model", "model", "--adapter", "", "--data", "rows.jsonl"}, "--adapter"},
      {{"eval", "--model", "", "--data", "rows.jsonl"}, "--model"},
      {{"eval", "--model", "model", "--data", "rows.jsonl", "--format", "xml"}, "tokenized"},
      {{"eval", "--model", "model", "--data", "rows.jsonl", "--max-length", "1"}, "from 2 to"},
      {{"generate", "--model", "model", "--prompt", "a", "--seed", "-1"}, "\"-1\""},
      {{"generate", "--model", "model", "--prompt", "a", "--seed", "99999999999999999999"},
       "--seed"},
      {{"generate", "--model", "model", "--prompt", "a", "--temperature", "-1"}, "--temperature"},
      {{"generate", "--model", "model", "--prompt", "a", "--temperature", "nan"}, "--temperature"},
      {{"generate", "--model", "model", "--prompt", "a", "--top-p", "0"}, "--top-p"},
      {{"generate", "--model", "model", "--prompt", "a", "--date", "2024-02-30"}, "YYYY-MM-DD"},
      {{"tokenize", "--model", "model", "--text", "\xff"}, "UTF-8"},
      {{"tokenize", "--model", "model", "--messages", "m", "--template-variables", "{"}, "JSON"},
      {{"data", "r.yaml", "--show", "-1"}, "a whole number from 0 to"},
      {{"inspect", ""}, "a name"},
  };
  for (const auto& [line, message] : cases) {
    SCOPED_TRACE(::testing::PrintToString(line));
    refused(graft(line), 2, message);
  }
}

TEST_F(Robust, DeepMessagesAreRefused) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  write_file_atomically(folder_ / "deep.json", deep);
  for (const char* command : {"tokenize", "generate"}) {
    refused(graft({command, "--model", "model", "--messages", "deep.json", "--json"}), 1,
            "deep.json: is nested more than");
  }
}

TEST_F(Robust, GenerateReadsWhatTokenizeShows) {
  write_file_atomically(folder_ / "t.jinja", "{{ tools | tojson }}{{ messages[0].content }}");
  write_file_atomically(folder_ / "q.json",
                        R"({"messages": [{"role": "user", "content": "q"}],
                            "tools": [{"type": "f", "name": "zeta", "about": "x"}]})");
  const std::vector<std::string> common = {"--model", "model",           "--messages", "q.json",
                                           "--json",  "--chat-template", "t.jinja"};
  std::vector<std::string> tokenize = {"tokenize"}, generate = {"generate", "--max-tokens", "1"};
  tokenize.insert(tokenize.end(), common.begin(), common.end());
  generate.insert(generate.end(), common.begin(), common.end());
  const json shown = json::parse(graft(tokenize).out), read = json::parse(graft(generate).out);
  EXPECT_EQ(shown["text"], R"([{"type": "f", "name": "zeta", "about": "x"}]q)");
  EXPECT_EQ(read["input_ids"], shown["input_ids"]);
}

TEST_F(Robust, LogitsRefuseNumbersThatWouldBeCutOff) {
  const Tensor ids = Tensor::of<int32_t>({1, 3}, {1, 2, 3});
  const auto with = [&](const std::string& name, const Tensor& tensor, const char* message) {
    std::vector<std::pair<std::string, Tensor>> tensors = {{name, tensor}};
    if (name != "input_ids") tensors.emplace_back("input_ids", ids);
    write_safetensors(folder_ / "in.safetensors", tensors);
    SCOPED_TRACE(name);
    refused(graft({"logits", "--model", "model", "--input", "in.safetensors", "--output",
                   "out.safetensors"}),
            1, message);
  };
  const int64_t wraps = (int64_t{1} << 32) + 3;
  with("input_ids", Tensor::of<int64_t>({1, 3}, {1, 2, wraps}), "holds 4294967299");
  with("labels", Tensor::of<int64_t>({1, 3}, {-100, 2, wraps}), "holds 4294967299");
  with("lengths", Tensor::of<int32_t>({1}, {4}), "3 tokens");
  with("lengths", Tensor::of<int32_t>({1}, {-1}), "lengths");
  with("position_ids", Tensor::of<int32_t>({1, 3}, {0, -1, 2}), "position_ids");
  refused(graft({"logits", "--model", "model", "--input", "in.safetensors", "--output",
                 "./in.safetensors"}),
          1, "the output is the input");
}

TEST_F(Robust, ADamagedModelIsNamed) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  {
    const SafetensorsFile file = SafetensorsFile::open(folder_ / "model" / "model.safetensors");
    for (const std::string& name : file.names())
      tensors.emplace_back(name, file.tensor(name).clone());
  }
  for (auto& [name, tensor] : tensors) {
    if (name == "model.norm.weight") tensor.data<float>()[0] = std::nanf("");
  }
  write_safetensors(folder_ / "model" / "model.safetensors", tensors);
  refused(graft({"eval", "--model", "model", "--data", "rows.jsonl", "--json"}), 1,
          "\"model.norm.weight\" holds values that are not finite");
  refused(graft({"train", "r.yaml"}), 1, "\"model.norm.weight\" holds values that are not finite");
}

TEST_F(Robust, ClosedStreamsDoNotReachTheFiles) {
  EXPECT_EQ(shell("graft train r.yaml <&- >&- 2>&-").exit_code, 0);
  const std::string metrics = read_text_file(folder_ / "out" / "metrics.jsonl");
  EXPECT_THAT(metrics, StartsWith("{\"step\": 1, "));
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 2);
  EXPECT_TRUE(json::parse(read_text_file(folder_ / "out" / "audit.json")).at("ok"));
}

TEST_F(Robust, ALimitOnFilesIsAnError) {
  const ProgramResult result = shell("ulimit -f 4; graft train r.yaml");
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.last_error_line(), StartsWith("error: "));
}

TEST_F(Robust, OneRunAtATimeWritesAFolder) {
  ASSERT_EQ(graft({"train", "r.yaml"}).exit_code, 0);
  const int fd = ::open((folder_ / "out").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  refused(graft({"train", "r.yaml"}), 1, "another graft is training into this folder");
  ::close(fd);
  EXPECT_EQ(graft({"train", "r.yaml"}).exit_code, 0);
}

TEST_F(Robust, AResolvedRecipeThatBeganFromAnAdapterRepeatsTheRun) {
  ASSERT_EQ(graft({"train", "r.yaml", "lora.r=3", "lora.lora_alpha=5", "lora.use_rslora=true",
                   "lora.target_modules=[q_proj, up_proj]", "lora.rank_pattern={up_proj: 2}"})
                .exit_code,
            0);
  const ProgramResult second =
      graft({"train", "r.yaml", "lora.init_adapter=out/adapter", "output_dir=second"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  const std::string adapter = "adapter/adapter_model.safetensors";
  const std::string bytes = read_text_file(folder_.path() / "second" / adapter);
  const ProgramResult again = graft({"train", "second/recipe.resolved.yaml", "output_dir=third"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(read_text_file(folder_.path() / "third" / adapter) == bytes);
}

TEST_F(Robust, WhatTouchesNothingIsTold) {
  const ProgramResult result =
      graft({"train", "r.yaml", "lora.exclude_modules=[q_proj, zeta]", "training.warmup_steps=9",
             "lora.layers_to_transform=[0, 7]", "lora.alpha_pattern={nope: 3}"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("lora.exclude_modules: zeta matched no adapter"));
  EXPECT_THAT(result.err, HasSubstr("lora.layers_to_transform: 7 matched no adapter"));
  EXPECT_THAT(result.err, HasSubstr("lora.alpha_pattern: nope matched no adapter"));
  EXPECT_THAT(result.err, HasSubstr("the rate never reaches training.learning_rate"));
  EXPECT_THAT(result.err, Not(HasSubstr("q_proj matched no")));
}

TEST_F(Robust, ATemplateNeedsATokenizer) {
  std::filesystem::remove(folder_ / "model" / "tokenizer.json");
  EXPECT_EQ(graft({"train", "r.yaml"}).exit_code, 0);
  refused(graft({"train", "r.yaml", "data.chat_template=t.jinja", "output_dir=other"}), 1,
          "no tokenizer.json");
}

TEST_F(Robust, MergeKeepsTheAdaptersFolder) {
  ASSERT_EQ(graft({"train", "r.yaml"}).exit_code, 0);
  refused(graft({"merge", "--model", "model", "--adapter", "out/adapter", "--output",
                 "out/../out/adapter"}),
          1, "the adapter's own folder");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/adapter/config.json"));
}

TEST_F(Robust, ARunThatIsBeingWrittenCanBeInspected) {
  ASSERT_EQ(graft({"train", "r.yaml"}).exit_code, 0);
  const std::string metrics = read_text_file(folder_ / "out" / "metrics.jsonl");
  write_file_atomically(folder_ / "out" / "metrics.jsonl", metrics + "{\"step\": 3, \"ep");
  const ProgramResult result = graft({"inspect", "out", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out).at("last_step").at("step"), 2);
}

TEST_F(Robust, SizesBeyondReasonAreRefusedAtOnce) {
  refused(graft({"train", "r.yaml", "training.per_device_batch_size=65536",
                 "data.max_length=1048576", "data.packing=true"}),
          1, "training.per_device_batch_size: a micro-batch of 65536 sequences");
  refused(graft({"train", "r.yaml", "training.max_steps=", "training.num_train_epochs=1e300"}), 1,
          "training.num_train_epochs");
}

}  // namespace
}  // namespace graft
