#include "data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "data/tiny_text_model.h"
#include "support/temporary.h"

namespace graft {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryFolder;

class DatasetTest : public ::testing::Test {
 protected:
  Dataset load(std::string_view text, const DataOptions& options = {}, int threads = 2) {
    std::ofstream(folder_ / "d.jsonl", std::ios::binary) << text;
    return load_dataset(folder_ / "d.jsonl", &text_, options, threads);
  }
  std::string complaint(std::string_view text, const DataOptions& options = {}, int threads = 2) {
    try {
      load(text, options, threads);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  TemporaryFolder folder_;
  TextModel text_ = testing::tiny_text_model();
};

std::string pair(const std::string& prompt, const std::string& completion) {
  return fmt::format("{{\"prompt\": \"{}\", \"completion\": \"{}\"}}\n", prompt, completion);
}

// Rows of 4, 8, 4 and 4 tokens; in the second the last five are trained.
const std::string kRows =
    pair("q", "xy") + pair("qqq", "xyzw") + "\n" + pair("q", "yz") + pair("q", "zx");

TEST_F(DatasetTest, CountsWhatThereIs) {
  const Dataset data = load(kRows);
  EXPECT_EQ(data.rows, 4);
  EXPECT_EQ(data.format, DataFormat::kPromptCompletion);
  EXPECT_EQ(data.trained_examples, 4);
  EXPECT_EQ(data.tokens, 20);
  EXPECT_EQ(data.trained_tokens, 14);
  EXPECT_EQ(data.longest, 8);
  EXPECT_EQ(data.trained_stop_tokens, 4);
  EXPECT_EQ(data.largest_id, testing::kFirstByte + 'z');
  EXPECT_EQ(data.largest_id_line, 2);
  EXPECT_THAT(data.warnings, IsEmpty());
  EXPECT_THAT(data.dropped, IsEmpty());
  std::vector<int64_t> lines;
  for (const TokenizedExample& example : *data.examples) lines.push_back(example.line);
  EXPECT_THAT(lines, ElementsAre(1, 2, 4, 5));
}

TEST_F(DatasetTest, LongRowsAreDropped) {
  DataOptions options;
  options.max_length = 7;
  const Dataset data = load(kRows, options);
  EXPECT_EQ(data.examples->size(), 3u);
  ASSERT_EQ(data.dropped.size(), 1u);
  EXPECT_EQ(data.dropped[0].line, 2);
  EXPECT_EQ(data.dropped[0].tokens, 8);
  EXPECT_THAT(data.dropped[0].reason, HasSubstr("max_length 7"));
  EXPECT_THAT(data.warnings,
              ElementsAre(AllOf(HasSubstr("1 of 4 rows (line 2)"), HasSubstr("dropped"))));
  options.max_length = 8;
  EXPECT_EQ(load(kRows, options).examples->size(), 4u);
}

TEST_F(DatasetTest, LongRowsAreCut) {
  DataOptions options;
  options.max_length = 5;
  options.on_too_long = OnTooLong::kTruncate;
  const Dataset data = load(kRows, options);
  EXPECT_EQ((*data.examples)[1].ids, testing::tiny_ids("qqqxy"));
  EXPECT_THAT((*data.examples)[1].trained, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(data.warnings, ElementsAre(AllOf(HasSubstr("line 2"), HasSubstr("cut"),
                                               HasSubstr("3 tokens are lost, 3 of them"))));
  options.on_too_long = OnTooLong::kError;
  EXPECT_THAT(complaint(kRows, options), AllOf(HasSubstr("d.jsonl, line 2"), HasSubstr("8 tokens"),
                                               HasSubstr("max_length: 5")));
}

TEST_F(DatasetTest, TooMuchDroppedIsRefused) {
  DataOptions options;
  options.max_length = 7;
  options.max_dropped_share = 0.2;
  EXPECT_THAT(complaint(kRows, options),
              AllOf(HasSubstr("1 of 4 rows"), HasSubstr("data.max_dropped_share")));
  options.max_dropped_share = 0.25;
  EXPECT_EQ(complaint(kRows, options), "");
  options.max_length = 3;
  EXPECT_THAT(complaint(kRows, options),
              AllOf(HasSubstr("no trained token is left"), HasSubstr("max_length: 3")));
}

TEST_F(DatasetTest, UntrainedRowsAreToldAndRefusedAboveAShare) {
  const std::string question = R"({"messages": [{"role": "user", "content": "q"}]})"
                               "\n";
  const std::string answered =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})"
      "\n";
  const Dataset data = load(answered + question);
  EXPECT_EQ(data.trained_examples, 1);
  EXPECT_EQ(data.examples->size(), 2u);
  EXPECT_THAT(data.warnings,
              ElementsAre(AllOf(HasSubstr("1 of 2 rows (line 2)"), HasSubstr("no token"))));
  EXPECT_THAT(complaint(question + question + answered),
              AllOf(HasSubstr("2 of 3 rows (lines 1, 2)"), HasSubstr("data.max_untrained_share")));
  EXPECT_THAT(complaint(question), HasSubstr("no trained token is left"));
}

TEST_F(DatasetTest, RepeatsAreTold) {
  const Dataset data = load(pair("q", "x") + pair("q", "y") + pair("q", "x") + pair("q", "x"));
  EXPECT_EQ(data.examples->size(), 4u);
  EXPECT_THAT(data.warnings,
              ElementsAre(AllOf(HasSubstr("2 of 4 rows (lines 3, 4)"), HasSubstr("repeats"))));
}

TEST_F(DatasetTest, DoubledBeginningIsFound) {
  text_ = testing::tiny_text_model({.begin_token = true});
  const Dataset data = load("{\"text\": \"x\"}\n{\"text\": \"<|begin|>x\"}\n");
  EXPECT_THAT(data.doubled_bos_lines, ElementsAre(2));
  EXPECT_THAT(data.warnings,
              Contains(AllOf(HasSubstr("line 2"), HasSubstr("two beginning-of-sequence"))));
}

TEST_F(DatasetTest, TheFormatIsOneForAllRows) {
  EXPECT_THAT(complaint(pair("q", "x") + "{\"text\": \"t\"}\n"),
              AllOf(HasSubstr("line 2"), HasSubstr("\"prompt\" is missing; the row has: text")));
  DataOptions options;
  options.format = DataFormat::kText;
  EXPECT_THAT(complaint(pair("q", "x"), options), HasSubstr("\"text\" is missing"));
  const std::string both = R"({"text": "t", "prompt": "p", "completion": "c"})";
  EXPECT_THAT(load(both).warnings,
              ElementsAre(AllOf(HasSubstr("prompt_completion and also text"))));
  EXPECT_THAT(load(both, options).warnings, IsEmpty());
}

TEST_F(DatasetTest, TheFirstFaultIsNamedWhateverTheThreads) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += pair("q", std::to_string(i));
  text += "{\"prompt\": 1, \"completion\": \"\"}\n{broken\n{\"prompt\": 1, \"completion\": \"\"}\n";
  for (const int threads : {1, 2, 7}) {
    EXPECT_THAT(complaint(text, {}, threads), HasSubstr("line 201: \"prompt\" must be text"));
  }
}

TEST_F(DatasetTest, ThreadsChangeNothing) {
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += pair("q" + std::to_string(i), std::string(static_cast<size_t>(i % 7), 'x'));
  const Dataset one = load(text, {}, 1), seven = load(text, {}, 7);
  ASSERT_EQ(one.examples->size(), seven.examples->size());
  for (size_t i = 0; i < one.examples->size(); ++i) {
    EXPECT_EQ((*one.examples)[i].line, (*seven.examples)[i].line);
    EXPECT_EQ((*one.examples)[i].ids, (*seven.examples)[i].ids);
    EXPECT_EQ((*one.examples)[i].trained, (*seven.examples)[i].trained);
  }
  EXPECT_EQ(one.warnings, seven.warnings);
}

TEST_F(DatasetTest, TokenizedNeedsNoTokenizer) {
  std::ofstream(folder_ / "t.jsonl") << R"({"input_ids": [7, 8, 9], "labels": [-100, -100, 9]})";
  const Dataset data = load_dataset(folder_ / "t.jsonl", nullptr, {});
  EXPECT_EQ(data.format, DataFormat::kTokenized);
  EXPECT_EQ(data.trained_tokens, 1);
  EXPECT_EQ(data.largest_id, 9);
}

TEST(ListLines, Shortens) {
  EXPECT_EQ(list_lines({3}, "line"), "line 3");
  EXPECT_EQ(list_lines({1, 2}, "row"), "rows 1, 2");
  EXPECT_EQ(list_lines({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, "line"),
            "lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more");
}

}  // namespace
}  // namespace graft
