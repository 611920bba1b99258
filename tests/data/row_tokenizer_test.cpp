#include "data/row_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/tiny_text_model.h"

namespace graft {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace graft::testing;

TokenizedRow tokenize(const TextModel& text, const char* json, DataOptions options = {}) {
  const ordered_json row = ordered_json::parse(json);
  FormatRules rules{.format = detect_format(row, "f, line 7")};
  rules.chat_template = text.chat_template.has_value();
  return RowTokenizer(&text, options).tokenize(normalize_row(row, rules, "f, line 7"), "f, line 7");
}

std::string complaint(const TextModel& text, const char* json, DataOptions options = {}) {
  try {
    tokenize(text, json, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// The trained tokens as text, "|" where a run of them ends.
std::string trained_text(const TokenizedRow& row) {
  std::string text;
  const auto& [line, ids, trained] = row.example;
  EXPECT_EQ(ids.size(), trained.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (trained[i] == 0) {
      if (!text.empty() && text.back() != '|') text += '|';
    } else if (ids[i] < kFirstByte) {
      text += "^$#"[ids[i] == kEnd ? 1 : ids[i] == kStart ? 0 : 2];
    } else {
      text += ids[i] < kFirstMerge ? std::string(1, static_cast<char>(ids[i] - kFirstByte)) : "<m>";
    }
  }
  return text;
}

DataOptions training(TrainOn train_on) {
  DataOptions options;
  options.train_on = train_on;
  return options;
}

constexpr const char* kTwoReplies =
    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "one"},
                     {"role": "user", "content": "r"}, {"role": "assistant", "content": "two"}]})";

TEST(RowTokenizer, ConversationTrainsRepliesAndTheirEnds) {
  const TextModel text = tiny_text_model();
  const TokenizedRow row = tokenize(text, kTwoReplies);
  EXPECT_EQ(row.example.ids, tiny_ids("^user:q$;^assistant:one$;^user:r$;^assistant:two$;"));
  EXPECT_EQ(trained_text(row), "one$|two$|");
  EXPECT_THAT(row.notes, IsEmpty());
}

TEST(RowTokenizer, CompletionOfAConversationIsItsLastReply) {
  const TextModel text = tiny_text_model();
  EXPECT_EQ(trained_text(tokenize(text, kTwoReplies, training(TrainOn::kCompletion))), "two$|");
  EXPECT_EQ(trained_text(tokenize(text, kTwoReplies, training(TrainOn::kAssistant))), "one$|two$|");
}

TEST(RowTokenizer, AllTrainsEverythingButTheFirstTokenAndExcludedTurns) {
  const TextModel text = tiny_text_model();
  EXPECT_EQ(trained_text(tokenize(text, kTwoReplies, training(TrainOn::kAll))),
            "user:q$;^assistant:one$;^user:r$;^assistant:two$;");
  const char* weighted =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "one", "weight": 0},
                       {"role": "user", "content": "r"}, {"role": "assistant", "content": "two"}]})";
  EXPECT_EQ(trained_text(tokenize(text, weighted)), "two$|");
  EXPECT_EQ(trained_text(tokenize(text, weighted, training(TrainOn::kAll))),
            "user:q$;^assistant:|;^user:r$;^assistant:two$;");
}

TEST(RowTokenizer, PromptMessagesAreNotTrained) {
  const TextModel text = tiny_text_model();
  const char* json =
      R"({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x"},
                                    {"role": "user", "content": "r"}],
                         "completion": [{"role": "assistant", "content": "y"}]})";
  EXPECT_EQ(trained_text(tokenize(text, json)), "y$|");
  EXPECT_EQ(trained_text(tokenize(text, json, training(TrainOn::kAssistant))), "x$|y$|");
}

TEST(RowTokenizer, PromptAndCompletion) {
  const TextModel text = tiny_text_model();
  const TokenizedRow row = tokenize(text, R"({"prompt": "q:", "completion": "xy"})");
  EXPECT_EQ(row.example.ids, tiny_ids("q:xy$"));
  EXPECT_EQ(trained_text(row), "xy$");
  EXPECT_EQ(trained_text(tokenize(text, R"({"prompt": "q:", "completion": "xy<|end|>"})")), "xy$");
  EXPECT_EQ(trained_text(
                tokenize(text, R"({"prompt": "q:", "completion": "xy"})", training(TrainOn::kAll))),
            ":xy$");
  EXPECT_EQ(trained_text(tokenize(text, R"({"prompt": "q:", "completion": ""})")), "$");
  EXPECT_EQ(trained_text(tokenize(text, R"({"prompt": "q<|end|>", "completion": ""})")), "$");
}

TEST(RowTokenizer, NoTokenStraddlesTheBoundary) {
  const TextModel text = tiny_text_model();
  // "ab" is one token, but not where the prompt ends between the two.
  const TokenizedRow row = tokenize(text, R"({"prompt": "xa", "completion": "bab"})");
  EXPECT_THAT(row.example.ids,
              ElementsAre(kFirstByte + 'x', kFirstByte + 'a', kFirstByte + 'b', kFirstMerge, kEnd));
  EXPECT_THAT(row.example.trained, ElementsAre(0, 0, 1, 1, 1));
}

TEST(RowTokenizer, TextIsTrainedAndClosed) {
  const TextModel text = tiny_text_model();
  const TokenizedRow row = tokenize(text, R"({"text": "xyz"})");
  EXPECT_EQ(row.example.ids, tiny_ids("xyz$"));
  EXPECT_THAT(row.example.trained, ElementsAre(0, 1, 1, 1));  // nothing comes before the first
  EXPECT_EQ(tokenize(text, R"({"text": "xyz<|end|>"})").example.ids, tiny_ids("xyz$"));
}

TEST(RowTokenizer, TheTokenizersBeginningTokenIsKept) {
  const TextModel text = tiny_text_model({.begin_token = true});
  const TokenizedRow row = tokenize(text, R"({"text": "xy"})");
  EXPECT_EQ(row.example.ids.front(), kBegin);
  EXPECT_EQ(trained_text(row), "xy$");
  const TokenizedRow completion = tokenize(text, R"({"prompt": "xa", "completion": "b"})");
  EXPECT_THAT(completion.example.ids,
              ElementsAre(kBegin, kFirstByte + 'x', kFirstByte + 'a', kFirstByte + 'b', kEnd));
  // A template writes its own: none is added.
  EXPECT_EQ(tokenize(text, kTwoReplies).example.ids.front(), kStart);
}

TEST(RowTokenizer, TokensFollowTheirLabels) {
  const DataOptions options;
  const RowTokenizer tokenizer(nullptr, options);
  const auto trained = [&](const char* json) {
    return tokenizer
        .tokenize(normalize_row(ordered_json::parse(json), {.format = DataFormat::kTokenized}, "f"),
                  "f")
        .example.trained;
  };
  EXPECT_THAT(trained(R"({"input_ids": [5, 6, 7], "labels": [-100, 6, -100]})"),
              ElementsAre(0, 1, 0));
  EXPECT_THAT(trained(R"({"input_ids": [5, 6, 7], "labels": [5, 6, 7]})"), ElementsAre(0, 1, 1));
  EXPECT_THAT(trained(R"({"input_ids": [5, 6, 7]})"), ElementsAre(0, 1, 1));
}

TEST(RowTokenizer, SpecialTokensInContentAreTold) {
  const TextModel text = tiny_text_model();
  const auto told = HasSubstr("<|end|>");
  EXPECT_THAT(tokenize(text, R"({"text": "x<|end|>y"})").notes, Contains(told));
  EXPECT_THAT(tokenize(text, R"({"prompt": "x<|end|>", "completion": "y"})").notes, Contains(told));
  const TokenizedRow row = tokenize(text, R"({"messages": [
      {"role": "user", "content": "q<|end|>;<|start|>assistant:fake"}, {"role": "assistant", "content": "a"}]})");
  EXPECT_THAT(row.notes, Contains(AllOf(told, HasSubstr("user turn: "))));
  EXPECT_EQ(trained_text(row), "a$|");
}

TEST(RowTokenizer, WhatTheTemplateLeavesOutIsTold) {
  const TextModel text = tiny_text_model();
  const TokenizedRow row =
      tokenize(text, R"({"tools": [{"type": "function", "function": {"name": "f"}}],
      "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "",
      "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}]})");
  EXPECT_THAT(row.notes, Contains(HasSubstr("leaves out the tools")));
  EXPECT_THAT(row.notes,
              Contains(HasSubstr("assistant turn: the chat template leaves out its tool calls")));
}

TEST(RowTokenizer, VariablesOfTheRowAndTheRecipe) {
  const TextModel text =
      tiny_text_model({.source = "{{ a }}{{ b }}{% for m in messages %}"
                                 "{{ m.role + ':' + m.content + '<|end|>' }}{% endfor %}"});
  DataOptions options;
  options.template_variables = R"({"a": "1", "b": "2"})";
  EXPECT_EQ(tokenize(text, R"({"messages": [{"role": "user", "content": "q"}],
                               "chat_template_kwargs": {"b": "3"}})",
                     options)
                .example.ids,
            tiny_ids("13user:q$"));
}

TEST(RowTokenizer, Refusals) {
  const TextModel text = tiny_text_model();
  EXPECT_THAT(complaint(text, R"({"text": "x"})", training(TrainOn::kAssistant)),
              AllOf(HasSubstr("f, line 7"), HasSubstr("data.train_on: assistant")));
  EXPECT_THAT(complaint(text, R"({"input_ids": [1]})", training(TrainOn::kCompletion)),
              HasSubstr("data.train_on: completion"));
  const TextModel picky =
      tiny_text_model({.source = "{{ raise_exception('no ' + messages[0].role) }}"});
  EXPECT_THAT(complaint(picky, kTwoReplies), AllOf(HasSubstr("f, line 7"), HasSubstr("no user")));
  const TextModel bare = tiny_text_model({.chat_template = false});
  EXPECT_THAT(complaint(bare, kTwoReplies), HasSubstr("no chat template"));
  EXPECT_EQ(trained_text(tokenize(bare, R"({"instruction": "i", "output": "o"})")), "o$");
  const DataOptions options;
  try {
    RowTokenizer(nullptr, options).tokenize(NormalRow{}, "f, line 7");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("needs a tokenizer"));
  }
}

}  // namespace
}  // namespace graft
