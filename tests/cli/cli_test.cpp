// The program as a person or a script meets it: exit codes, the error line, JSON alone on stdout.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/program.h"
#include "support/shared.h"
#include "support/temporary.h"

namespace graft {
namespace {

using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::run_program;
using ::testing::StartsWith;
using testing::TemporaryFolder;

ProgramResult graft(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), GRAFT_BINARY);
  return run_program(std::move(arguments));
}

TEST(Program, VersionAndHelpSucceed) {
  const ProgramResult version = graft({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, StartsWith("graft "));
  const ProgramResult help = graft({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : {"train", "logits", "eval", "generate", "chat", "tokenize", "data",
                              "merge", "export", "inspect", "checkpoint"}) {
    EXPECT_THAT(help.out, HasSubstr(command));
    const ProgramResult page = graft({command, "--help"});
    EXPECT_EQ(page.exit_code, 0) << command;
    EXPECT_FALSE(page.out.empty()) << command;
  }
}

TEST(Program, AWrongCommandLineIsTwo) {
  const std::vector<std::vector<std::string>> lines = {
      {}, {"nonsense"}, {"train"}, {"eval", "--model", "m"}, {"merge", "--nonsense"}};
  for (const auto& line : lines) {
    const ProgramResult result = graft(line);
    EXPECT_EQ(result.exit_code, 2) << ::testing::PrintToString(line);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.last_error_line(), StartsWith("error: "));
    EXPECT_THAT(result.last_error_line(), HasSubstr("--help"));
  }
  EXPECT_EQ(graft({"eval", "--model", "m", "--data", "d", "--dtype", "f8"}).exit_code, 2);
}

TEST(Program, AnErrorIsOneAndItsLastLineSaysWhat) {
  TemporaryFolder folder;
  const ProgramResult missing = graft({"train", (folder / "none.yaml").string()});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_EQ(missing.out, "");
  EXPECT_THAT(missing.last_error_line(), StartsWith("error: "));
  EXPECT_THAT(missing.last_error_line(), HasSubstr("none.yaml"));

  write_file_atomically(folder / "bad.yaml", "model: m\noutput_dir: o\nlora:\n  rr: 3\n");
  const ProgramResult unknown = graft({"train", (folder / "bad.yaml").string()});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.last_error_line(), HasSubstr("bad.yaml:4: unknown key lora.rr"));
  EXPECT_THAT(unknown.last_error_line(), HasSubstr("lora.r"));

  const ProgramResult incomplete = graft({"train", (folder / "bad.yaml").string(), "lora.rr="});
  EXPECT_EQ(incomplete.exit_code, 1);

  write_file_atomically(folder / "few.yaml", "model: m\noutput_dir: o\n");
  EXPECT_THAT(graft({"train", (folder / "few.yaml").string()}).last_error_line(),
              HasSubstr("data.train is missing"));
}

TEST(Program, AFullDiskIsAnError) {
  const ProgramResult result =
      run_program({"/bin/sh", "-c", std::string(GRAFT_BINARY) + " --version > /dev/full"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.last_error_line(), StartsWith("error: "));
}

TEST(Program, AClosedPipeIsNoSignal) {
  const ProgramResult result = run_program(
      {"/bin/bash", "-c", std::string(GRAFT_BINARY) + " --help | true; exit ${PIPESTATUS[0]}"});
  EXPECT_TRUE(result.exit_code == 0 || result.exit_code == 1) << result.exit_code;
}

TEST(Tokenize, TextMayBeAnything) {
  GRAFT_SHARED_OR_SKIP(model, "real/smollm2_tokenizer");
  const std::vector<std::string> texts = {"",           "-x", "--json", "[a,b]",
                                          "a=b",        "{}", "%%",     "\"q\"",
                                          "two\nlines", "-5", "--",     "größer 🙂"};
  for (const std::string& text : texts) {
    for (const bool joined : {false, true}) {
      if (joined && text != "" && text != "--json") continue;  // "--text=..." is one path for all
      std::vector<std::string> line = {"tokenize", "--model", model.string(), "--json"};
      if (joined) {
        line.push_back("--text=" + text);
      } else {
        line.insert(line.end(), {"--text", text});
      }
      const ProgramResult result = graft(line);
      ASSERT_EQ(result.exit_code, 0) << text << ": " << result.err;
      const auto json = nlohmann::json::parse(result.out);
      EXPECT_EQ(json.at("text"), text);
      EXPECT_EQ(json.at("input_ids").empty(), text.empty());
      for (const auto& one : json.at("assistant_mask")) EXPECT_EQ(one, 0);
      EXPECT_EQ(json.at("assistant_mask").size(), json.at("input_ids").size());
    }
  }
}

TEST(Data, JsonIsAloneOnStdout) {
  GRAFT_SHARED_OR_SKIP(model, "real/smollm2_tokenizer");
  GRAFT_SHARED_OR_SKIP(rows, "real/data_cases/prompt_only_row.jsonl");
  TemporaryFolder folder;
  write_file_atomically(folder / "r.yaml",
                        "model: " + model.string() + "\ndata:\n  train: " + rows.string() + "\n");
  const ProgramResult result = graft({"data", (folder / "r.yaml").string(), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("examples"), 3);
  EXPECT_EQ(json.at("rows").size(), 4u);
  ASSERT_FALSE(json.at("warnings").empty());
  EXPECT_THAT(result.err, HasSubstr("warning: "));  // told to the person too
}

}  // namespace
}  // namespace graft
