#include "data/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace graft {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

NormalRow normalize(const char* json, FormatRules rules = {}) {
  const ordered_json row = ordered_json::parse(json);
  if (rules.format == DataFormat::kAuto) rules.format = detect_format(row, "f, line 7");
  return normalize_row(row, rules, "f, line 7");
}

std::string complaint(const char* json, FormatRules rules = {}) {
  try {
    normalize(json, rules);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(DetectFormat, ByColumns) {
  const auto detect = [](const char* json, std::vector<std::string>* also = nullptr) {
    return detect_format(ordered_json::parse(json), "f, line 1", also);
  };
  EXPECT_EQ(detect(R"({"messages": []})"), DataFormat::kMessages);
  EXPECT_EQ(detect(R"({"id": 1, "conversations": []})"), DataFormat::kShareGpt);
  EXPECT_EQ(detect(R"({"prompt": "", "completion": ""})"), DataFormat::kPromptCompletion);
  EXPECT_EQ(detect(R"({"instruction": "", "output": ""})"), DataFormat::kAlpaca);
  EXPECT_EQ(detect(R"({"text": ""})"), DataFormat::kText);
  EXPECT_EQ(detect(R"({"input_ids": [], "labels": []})"), DataFormat::kTokenized);
  std::vector<std::string> also;
  EXPECT_EQ(detect(R"({"text": "", "messages": []})", &also), DataFormat::kMessages);
  EXPECT_THAT(also, ElementsAre("text"));
  try {
    detect(R"({"prompt": "", "answer": ""})");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("f, line 1"), HasSubstr("prompt, answer")));
  }
}

TEST(Messages, KeepTheirKeysInOrder) {
  const NormalRow row = normalize(R"({"messages": [
      {"role": "user", "content": "q", "name": null},
      {"content": "", "role": "assistant",
       "tool_calls": [{"function": {"name": "f", "arguments": {"z": null, "a": 1.5}}}]},
      {"role": "tool", "content": "r", "tool_call_id": "1"},
      {"role": "assistant", "content": "a"}],
      "tools": [{"type": "function"}], "chat_template_kwargs": {"k": true}})");
  EXPECT_EQ(
      row.messages.dump(),
      R"([{"role":"user","content":"q"},)"
      R"({"content":"","role":"assistant","tool_calls":[{"function":{"name":"f",)"
      R"("arguments":{"z":null,"a":1.5}}}]},)"
      R"({"role":"tool","content":"r","tool_call_id":"1"},{"role":"assistant","content":"a"}])");
  EXPECT_EQ(row.tools.dump(), R"([{"type":"function"}])");
  EXPECT_EQ(row.variables.dump(), R"({"k":true})");
  EXPECT_TRUE(row.notes.empty());
}

TEST(Messages, NullsOfColumnarFilesAreDropped) {
  const NormalRow row = normalize(
      R"({"messages": [{"role": "user", "content": "q", "tool_calls": null},
          {"role": "assistant", "content": null, "tool_calls":
           [{"id": null, "function": {"name": "f", "arguments": {"z": null, "a": 1}}}]}],
          "tools": [{"type": "function", "x": null}]})",
      {.columnar = true});
  EXPECT_EQ(row.messages.dump(),
            R"([{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":)"
            R"([{"function":{"name":"f","arguments":{"a":1}}}]}])");
  EXPECT_EQ(row.tools.dump(), R"([{"type":"function"}])");
}

TEST(Messages, AsJsonInAString) {
  const NormalRow row =
      normalize(R"({"messages": "[{\"role\": \"user\", \"content\": \"q\"}]", "tools": "[]"})");
  EXPECT_EQ(row.messages.dump(), R"([{"role":"user","content":"q"}])");
  EXPECT_TRUE(row.tools.is_null());
  EXPECT_THAT(complaint(R"({"messages": "[{"})"), HasSubstr("f, line 7: messages"));
}

TEST(Messages, WeightAndTrainExcludeATurn) {
  const NormalRow row = normalize(R"({"messages": [
      {"role": "user", "content": "q", "weight": 0},
      {"role": "assistant", "content": "a", "weight": 0},
      {"role": "user", "content": "q"},
      {"role": "assistant", "content": "a", "weight": 1.0, "train": false},
      {"role": "user", "content": "q"},
      {"role": "assistant", "content": "a", "train": true}]})");
  EXPECT_THAT(row.excluded, ElementsAre(true, true, false, true, false, false));
  EXPECT_EQ(row.messages[5].dump(), R"({"role":"assistant","content":"a"})");
  EXPECT_THAT(complaint(R"({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]})"),
              HasSubstr("\"weight\" must be 0 or 1, not 0.5"));
  EXPECT_THAT(complaint(R"({"messages": [{"role": "user", "content": "a", "train": true}]})"),
              HasSubstr("asks to be trained"));
}

TEST(Messages, FaultsAreNamed) {
  const auto place = HasSubstr("f, line 7: messages[1]");
  const auto with = [](const char* second) {
    return complaint(
        (R"({"messages": [{"role": "user", "content": "q"}, )" + std::string(second) + "]}")
            .c_str());
  };
  EXPECT_THAT(with(R"({"content": "a"})"), AllOf(place, HasSubstr("\"role\" is missing")));
  EXPECT_THAT(with(R"({"role": 3, "content": "a"})"),
              AllOf(place, HasSubstr("\"role\" must be text")));
  EXPECT_THAT(with(R"({"role": "Assistant", "content": "a"})"),
              AllOf(place, HasSubstr("unknown role \"Assistant\""), HasSubstr("assistant")));
  EXPECT_THAT(with(R"({"role": "assistant"})"), AllOf(place, HasSubstr("\"content\" is missing")));
  EXPECT_THAT(with(R"({"role": "assistant", "content": 42})"),
              AllOf(place, HasSubstr("\"content\" must be text, not number (42)")));
  EXPECT_THAT(with(R"({"role": "assistant", "content": null})"),
              AllOf(place, HasSubstr("content")));
  EXPECT_THAT(with(R"({"role": "user", "content": [{"type": "image"}]})"),
              AllOf(place, HasSubstr("text")));
  EXPECT_THAT(with(R"({"role": "assistant", "content": "", "tool_calls": {}})"),
              AllOf(place, HasSubstr("\"tool_calls\" must be a list")));
  EXPECT_THAT(with("3"), AllOf(place, HasSubstr("must be an object, not number")));
  EXPECT_THAT(complaint(R"({"messages": {"role": "user"}})"),
              HasSubstr("must be a list of messages"));
  EXPECT_THAT(complaint(R"({"messages": []})"), HasSubstr("no messages"));
  EXPECT_THAT(complaint(R"({"messages": [{"role": "user", "content": "q"}], "tools": {}})"),
              HasSubstr("\"tools\" must be a list"));
  EXPECT_EQ(with(R"({"role": "user", "content": [{"type": "text", "text": "t"}]})"), "");
}

TEST(Messages, RolesThatTheTemplateNamesAreKnown) {
  const char* row = R"({"messages": [{"role": "critic", "content": "q"}]})";
  EXPECT_THAT(complaint(row), HasSubstr("critic"));
  EXPECT_EQ(complaint(row, {.template_source = "{% if m.role == 'critic' %}"}), "");
}

TEST(Messages, NotesOnTurns) {
  const auto notes = [](std::vector<std::string> roles) {
    ordered_json row;
    row["messages"] = ordered_json::array();
    for (const std::string& role : roles)
      row["messages"].push_back({{"role", role}, {"content", "x"}});
    return normalize(row.dump().c_str()).notes;
  };
  EXPECT_THAT(notes({"system", "user", "assistant", "tool", "tool", "assistant", "user"}),
              ElementsAre());
  EXPECT_THAT(notes({"user", "user", "assistant"}),
              ElementsAre("has turns out of order (user after user)"));
  EXPECT_THAT(notes({"assistant", "user", "assistant"}),
              ElementsAre("has turns out of order (begins with assistant)"));
  EXPECT_THAT(notes({"user", "assistant", "assistant"}),
              ElementsAre("has turns out of order (assistant after assistant)"));
  EXPECT_THAT(notes({"user", "assistant", "system"}),
              ElementsAre("has turns out of order (system after assistant)"));
  EXPECT_THAT(notes({"user", "tool"}), ElementsAre("has turns out of order (tool after user)"));
  EXPECT_THAT(normalize(R"({"messages": [{"role": "user", "content": "q"},
                           {"role": "assistant", "content": " \n"}]})")
                  .notes,
              ElementsAre(HasSubstr("has an empty reply")));
}

TEST(ShareGpt, SpeakersBecomeRoles) {
  const NormalRow row = normalize(R"({"system": "s", "conversations": [
      {"from": "human", "value": "q"},
      {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"},
      {"from": "observation", "value": "r"},
      {"from": "gpt", "value": "a", "weight": 0},
      {"role": "user", "content": "q2"}]})");
  EXPECT_EQ(row.messages.dump(),
            R"([{"role":"system","content":"s"},{"role":"user","content":"q"},)"
            R"({"role":"assistant","content":"","tool_calls":[{"type":"function","function":)"
            R"({"name":"f","arguments":{}}}]},{"role":"tool","content":"r"},)"
            R"({"role":"assistant","content":"a"},{"role":"user","content":"q2"}])");
  EXPECT_THAT(row.excluded, ElementsAre(false, false, false, false, true, false));
  const auto place = HasSubstr("f, line 7: conversations[0]");
  EXPECT_THAT(complaint(R"({"conversations": [{"from": "narrator", "value": "q"}]})"),
              AllOf(place, HasSubstr("unknown speaker \"narrator\"")));
  EXPECT_THAT(complaint(R"({"conversations": [{"value": "q"}]})"), AllOf(place, HasSubstr("role")));
  EXPECT_THAT(complaint(R"({"conversations": [{"from": "gpt"}]})"),
              AllOf(place, HasSubstr("value")));
  EXPECT_THAT(complaint(R"({"conversations": [{"from": "gpt", "value": 1}]})"),
              AllOf(place, HasSubstr("content")));
  EXPECT_THAT(complaint(R"({"conversations": [{"from": "function_call", "value": "f"}]})"), place);
}

TEST(PromptCompletion, TextsOrMessages) {
  const NormalRow texts = normalize(R"({"prompt": "[1, 2] and", "completion": "c"})");
  EXPECT_EQ(texts.shape, NormalRow::Shape::kPromptCompletion);
  EXPECT_EQ(texts.prompt, "[1, 2] and");
  EXPECT_EQ(texts.completion, "c");
  const NormalRow lists = normalize(R"({"prompt": [{"role": "user", "content": "q"}],
                                        "completion": [{"role": "assistant", "content": "a"}]})");
  EXPECT_EQ(lists.shape, NormalRow::Shape::kConversation);
  EXPECT_EQ(lists.first_completion, 1u);
  EXPECT_EQ(lists.messages.size(), 2u);
  EXPECT_THAT(complaint(R"({"prompt": [], "completion": "c"})"), HasSubstr("one of \"prompt\""));
  EXPECT_THAT(complaint(R"({"prompt": 1, "completion": "c"})"),
              HasSubstr("\"prompt\" must be text"));
  EXPECT_THAT(complaint(R"({"prompt": "p"})", {.format = DataFormat::kPromptCompletion}),
              AllOf(HasSubstr("f, line 7"), HasSubstr("\"completion\" is missing")));
  EXPECT_THAT(normalize(R"({"prompt": "p", "completion": ""})").notes,
              ElementsAre(HasSubstr("has an empty completion")));
}

TEST(Alpaca, WithAndWithoutAChatTemplate) {
  const char* json = R"({"instruction": "i", "input": "x", "output": "o", "system": "s",
                         "history": [["a", "b"]]})";
  EXPECT_EQ(normalize(json).messages.dump(),
            R"([{"role":"system","content":"s"},{"role":"user","content":"a"},)"
            R"({"role":"assistant","content":"b"},{"role":"user","content":"i\n\nx"},)"
            R"({"role":"assistant","content":"o"}])");
  EXPECT_EQ(normalize(R"({"instruction": "i", "input": "", "output": "o"})").messages.dump(),
            R"([{"role":"user","content":"i"},{"role":"assistant","content":"o"}])");
  EXPECT_THAT(complaint(json, {.chat_template = false}), HasSubstr("history"));
  const NormalRow plain =
      normalize(R"({"instruction": "i", "input": null, "output": "o"})", {.chat_template = false});
  EXPECT_EQ(plain.prompt, "i\n\nAnswer:\n");
  EXPECT_EQ(plain.completion, "o");
  EXPECT_THAT(complaint(R"({"instruction": "i", "output": null})"),
              HasSubstr("\"output\" must be text, not null"));
}

TEST(Tokenized, LabelsAreAligned) {
  const NormalRow row = normalize(R"({"input_ids": [5, 6, 7], "labels": [-100, 6, 7]})");
  EXPECT_THAT(row.input_ids, ElementsAre(5, 6, 7));
  EXPECT_THAT(row.labels, ElementsAre(-100, 6, 7));
  EXPECT_TRUE(normalize(R"({"input_ids": [5], "labels": null})").labels.empty());
  EXPECT_THAT(normalize(R"({"input_ids": "[1, 2]"})").input_ids, ElementsAre(1, 2));
  EXPECT_THAT(complaint(R"({"input_ids": [5, 6], "labels": [6, -100]})"), HasSubstr("not shifted"));
  EXPECT_THAT(complaint(R"({"input_ids": [5, 6], "labels": [5]})"), HasSubstr("2"));
  EXPECT_THAT(complaint(R"({"input_ids": []})"), HasSubstr("empty"));
  const NormalRow padded = normalize(
      R"({"input_ids": [0, 5, 6, 0], "labels": [-100, 5, 6, -100], "attention_mask": [0, 1, 1, 0]})");
  EXPECT_THAT(padded.input_ids, ElementsAre(5, 6));
  EXPECT_THAT(padded.labels, ElementsAre(5, 6));
  EXPECT_THAT(normalize(R"({"input_ids": [5, 6], "attention_mask": [1, 1]})").input_ids,
              ElementsAre(5, 6));
  EXPECT_THAT(complaint(R"({"input_ids": [5, 6, 7], "attention_mask": [1, 0, 1]})"),
              HasSubstr("\"attention_mask\"[1] is 0"));
  EXPECT_THAT(complaint(R"({"input_ids": [5], "attention_mask": [2]})"), HasSubstr("[0] is 2"));
  EXPECT_THAT(complaint(R"({"input_ids": [5], "attention_mask": [0]})"), HasSubstr("every token"));
  EXPECT_THAT(complaint(R"({"input_ids": [5], "attention_mask": [1, 1]})"), HasSubstr("entries"));
  for (const char* bad :
       {"-1", "1.5", "2147483648", "18446744073709551615", "\"a\"", "null", "true"}) {
    EXPECT_THAT(complaint(fmt::format(R"({{"input_ids": [1, {}]}})", bad).c_str()),
                HasSubstr("\"input_ids\"[1]"))
        << bad;
  }
}

TEST(Text, MustBeText) {
  EXPECT_EQ(normalize(R"({"text": "t"})").text, "t");
  EXPECT_THAT(complaint(R"({"text": 3})"), HasSubstr("\"text\" must be text, not number"));
}

}  // namespace
}  // namespace graft
