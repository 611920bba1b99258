// Files as users bring them, each ending as the reference's manifest says: accepted, accepted with
// a warning, or refused with file, line and reason.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/dataset.h"
#include "support/shared.h"

namespace graft {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class DataCases : public ::testing::Test {
 protected:
  void SetUp() override {
    GRAFT_SHARED_OR_SKIP(cases, "real/data_cases");
    GRAFT_SHARED_OR_SKIP(tokenizer, "real/smollm2_tokenizer");
    folder_ = cases;
    text_ = std::make_unique<TextModel>(load_text_model(tokenizer));
    manifest_ = json::parse(std::ifstream(cases / "manifest.json")).at("cases");
    options_.max_length = 4096;
  }

  Dataset load(const json& one, const DataOptions& options) const {
    return load_dataset(folder_ / one.at("file").get<std::string>(), text_.get(), options);
  }

  std::filesystem::path folder_;
  std::unique_ptr<TextModel> text_;
  json manifest_;
  DataOptions options_;
};

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// The file's own name may hold the words that a message must mention.
std::string without(std::string text, const std::string& name) {
  for (size_t at; (at = text.find(name)) != std::string::npos;) text.erase(at, name.size());
  return text;
}

void expect_counts(const json& one, const Dataset& data) {
  if (!one.contains("smollm2")) return;
  const json& tokens = one["smollm2"]["tokens"];
  const json& trained = one["smollm2"]["trained_tokens"];
  const int64_t rows = static_cast<int64_t>(data.examples->size() + data.dropped.size());
  ASSERT_EQ(rows, static_cast<int64_t>(tokens.size()));
  size_t row = 0, dropped = 0;
  for (const TokenizedExample& example : *data.examples) {
    while (dropped < data.dropped.size() && data.dropped[dropped].line < example.line)
      ++dropped, ++row;
    EXPECT_EQ(example.size(), tokens[row].get<int64_t>()) << "line " << example.line;
    EXPECT_EQ(example.trained_count(), trained[row].get<int64_t>()) << "line " << example.line;
    ++row;
  }
}

TEST_F(DataCases, EndAsTheManifestSays) {
  for (const json& one : manifest_) {
    const auto name = one.at("file").get<std::string>();
    SCOPED_TRACE(name);
    DataOptions options = options_;
    if (one.contains("smollm2") && one["smollm2"]["max_len"].is_number()) {
      options.max_length = one["smollm2"]["max_len"].get<int64_t>();
    }
    if (one.at("expect") == "reject") {
      try {
        load(one, options);
        ADD_FAILURE() << "accepted";
      } catch (const Error& e) {
        EXPECT_THAT(e.what(), HasSubstr(name));
        if (one.contains("line")) {
          EXPECT_THAT(e.where(), HasSubstr(fmt::format(", line {}", one["line"].get<int>())));
        }
        for (const json& word : one.at("must_mention")) {
          EXPECT_THAT(without(e.what(), name), HasSubstr(word.get<std::string>()));
        }
      }
      continue;
    }
    const Dataset data = load(one, options);
    EXPECT_EQ(data.trained_examples, one.at("examples").get<int64_t>());
    expect_counts(one, data);
    const std::string warnings = without(joined(data.warnings), name);
    if (one.at("expect") == "accept") {
      EXPECT_EQ(warnings, "");
      continue;
    }
    EXPECT_NE(warnings, "");
    if (one.contains("line")) {
      EXPECT_THAT(warnings, HasSubstr(fmt::format("{}", one["line"].get<int>())));
    }
    if (!one.contains("must_mention")) continue;
    for (const json& word : one.at("must_mention")) {
      EXPECT_THAT(warnings, HasSubstr(word.get<std::string>()));
    }
  }
}

TEST_F(DataCases, VeryLongRowCut) {
  DataOptions options = options_;
  options.max_length = 128;
  options.on_too_long = OnTooLong::kTruncate;
  const Dataset data = load_dataset(folder_ / "very_long_row.jsonl", text_.get(), options);
  EXPECT_EQ(data.trained_examples, 4);
  EXPECT_EQ((*data.examples)[2].size(), 128);
  EXPECT_EQ((*data.examples)[2].trained_count(), 92);
  EXPECT_THAT(joined(data.warnings), HasSubstr("line 3): cut"));
  EXPECT_THAT(joined(data.warnings), HasSubstr("3401 tokens are lost"));
}

TEST_F(DataCases, TextIsWhollyTrainedAndClosed) {
  const Dataset data = load_dataset(folder_ / "text_column.jsonl", text_.get(), options_);
  for (const TokenizedExample& example : *data.examples) {
    EXPECT_EQ(example.trained_count(), example.size() - 1);
    EXPECT_EQ(example.ids.back(), text_->eos_id);
  }
}

TEST_F(DataCases, CompletionsAreTrainedWithTheirEnd) {
  const Dataset data = load_dataset(folder_ / "prompt_completion.jsonl", text_.get(), options_);
  const TokenizedExample& first = data.examples->front();
  const auto prompt = text_->tokenizer.encode("Name a colour of the rainbow.\n", false);
  auto expected = prompt;
  for (const int32_t id : text_->tokenizer.encode("Green.", false)) expected.push_back(id);
  expected.push_back(*text_->eos_id);
  EXPECT_EQ(first.ids, expected);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(first.trained[i], i >= prompt.size());
}

TEST_F(DataCases, ContentSurvives) {
  const auto text_of = [&](const char* file, size_t row) {
    const Dataset data = load_dataset(folder_ / file, text_.get(), options_);
    return text_->tokenizer.decode((*data.examples)[row].ids, true);
  };
  EXPECT_THAT(text_of("nul_escaped.jsonl", 1),
              HasSubstr(std::string("left\0right side of the text", 27)));
  EXPECT_THAT(text_of("crlf.jsonl", 1), HasSubstr("one\r\ntwo"));
  EXPECT_THAT(text_of("emoji_combining_rtl.jsonl", 1), HasSubstr("caf\u00e9 is not cafe\u0301"));
  EXPECT_THAT(text_of("emoji_combining_rtl.jsonl", 4), HasSubstr("e\u2029"));
  EXPECT_THAT(text_of("alpaca.csv", 0), HasSubstr("Say \"hi\", please\nassistant\nHi, there"));
  EXPECT_THAT(text_of("alpaca.csv", 1), HasSubstr("Two lines\n\nfirst\nsecond"));
}

TEST_F(DataCases, ToolsWithATemplateThatKnowsThem) {
  GRAFT_SHARED_OR_SKIP(tokenizer, "tokenizers/qwen3");
  const TextModel qwen = load_text_model(tokenizer);
  const Dataset data = load_dataset(folder_ / "tools_and_tool_calls.jsonl", &qwen, options_);
  EXPECT_EQ(data.trained_examples, 3);
  EXPECT_EQ(joined(data.warnings), "");
  for (size_t row : {0, 1}) {  // arguments as an object, and as a text of JSON
    const std::string text = qwen.tokenizer.decode((*data.examples)[row].ids, false);
    EXPECT_THAT(text, HasSubstr("\"arguments\": {\"word\": "));
  }
}

TEST_F(DataCases, ATemplateThatRefusesTheOrderOfTurns) {
  GRAFT_SHARED_OR_SKIP(tokenizer, "tokenizers/gemma3");
  const TextModel gemma = load_text_model(tokenizer);
  try {
    load_dataset(folder_ / "alternation_violated.jsonl", &gemma, options_);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("alternation_violated.jsonl, line 2"));
    EXPECT_THAT(e.what(), HasSubstr("Conversation roles must alternate"));
  }
}

}  // namespace
}  // namespace graft
