// graft data: its JSON, its warnings, its refusals.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "data/tiny_text_model.h"
#include "support/program.h"
#include "support/temporary.h"

namespace graft {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::run_program;

class DataCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "model");
    testing::write_tiny_tokenizer(folder_ / "model");
    write_file_atomically(
        folder_ / "recipe.yaml",
        fmt::format("model: {}\noutput_dir: {}\ndata:\n  train: {}\n", (folder_ / "model").string(),
                    (folder_ / "out").string(), (folder_ / "d.jsonl").string()));
  }
  ProgramResult data(std::string_view rows, std::vector<std::string> more) {
    write_file_atomically(folder_ / "d.jsonl", rows);
    std::vector<std::string> command = {GRAFT_BINARY, "data", (folder_ / "recipe.yaml").string()};
    command.insert(command.end(), more.begin(), more.end());
    return run_program(std::move(command));
  }
  testing::TemporaryFolder folder_;
};

constexpr std::string_view kRows =
    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}

{"messages": [{"role": "user", "content": "question"}, {"role": "assistant", "content": "a"}]}
{"messages": [{"role": "user", "content": "q"}]}
)";

TEST_F(DataCommand, JsonHoldsEveryRowThatIsNotDropped) {
  const ProgramResult result = data(kRows, {"data.max_length=24", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json out = json::parse(result.out);
  EXPECT_EQ(out.size(), 6u);
  EXPECT_EQ(out["examples"], 1);
  EXPECT_EQ(out["tokens"], 23 + 9);
  EXPECT_EQ(out["trained_tokens"], 2);
  ASSERT_EQ(out["rows"].size(), 2u);
  EXPECT_EQ(out["rows"][0]["input_ids"], testing::tiny_ids("^user:q$;^assistant:a$;"));
  EXPECT_EQ(out["rows"][1]["trained"], json(std::vector<int>(9, 0)));
  ASSERT_EQ(out["dropped"].size(), 1u);
  EXPECT_EQ(out["dropped"][0]["line"], 3);
  EXPECT_EQ(out["dropped"][0]["tokens"], 30);
  EXPECT_THAT(out["dropped"][0]["reason"].get<std::string>(), HasSubstr("max_length"));
  ASSERT_EQ(out["warnings"].size(), 2u);
  for (const json& warning : out["warnings"]) {
    EXPECT_THAT(result.err, HasSubstr(warning.get<std::string>()));
  }
}

TEST_F(DataCommand, PeopleSeeWhatIsTrained) {
  const ProgramResult result = data(kRows, {"--show", "1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("<|start|>assistant:⟦a<|end|>⟧;"));
  EXPECT_THAT(result.out, HasSubstr("3 rows read as messages"));
  EXPECT_THAT(result.out, Not(HasSubstr("question")));
  EXPECT_THAT(result.err, HasSubstr("1 of 3 rows (line 4)"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(DataCommand, ARefusedFileIsAnError) {
  const ProgramResult result = data("{\"messages\": [{\"role\": \"user\"}]}\n", {"--json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.last_error_line(), AllOf(HasSubstr("d.jsonl, line 1"), HasSubstr("content")));
  EXPECT_THAT(data("", {}).last_error_line(), HasSubstr("empty"));
}

TEST_F(DataCommand, TokenizedRowsNeedNoTokenizer) {
  std::filesystem::remove(folder_ / "model" / "tokenizer.json");
  const ProgramResult result =
      data("{\"input_ids\": [4, 5, 6], \"labels\": [-100, -100, 6]}\n", {"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["rows"][0]["trained"], json({0, 0, 1}));
  EXPECT_THAT(data(kRows, {}).last_error_line(), HasSubstr("needs a tokenizer"));
}

}  // namespace
}  // namespace graft
