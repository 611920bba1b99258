#include "text/assistant_mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/shared.h"
#include "text/text_model.h"

namespace graft::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const TextModel& tiny() {
  static const TextModel model = load_text_model(test_data("tiny_tokenizer"));
  return model;
}

MaskedConversation mask(const std::string& messages, const std::string& source = "",
                        const std::string& tools = "", const std::string& variables = "") {
  const ChatTemplate chat_template =
      source.empty() ? *tiny().chat_template
                     : ChatTemplate::compile(source, "test.jinja", tiny().special_tokens);
  return AssistantMasker(tiny().tokenizer, chat_template)
      .mask({messages, tools, ""}, {"2026-01-15", variables}, false);
}

// The trained tokens' own text; runs of trained tokens in brackets.
std::string trained_text(const MaskedConversation& masked) {
  std::string out;
  std::vector<int32_t> run;
  for (size_t i = 0; i <= masked.ids.size(); ++i) {
    if (i < masked.ids.size() && masked.trained[i]) {
      run.push_back(masked.ids[i]);
    } else if (!run.empty()) {
      out += "[" + tiny().tokenizer.decode(run, false) + "]";
      run.clear();
    }
  }
  return out;
}

const std::string kTwoTurns =
    R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "b"}, {"role": "assistant", "content": "world"}])";

TEST(AssistantMask, TrainsRepliesAndTheirEnds) {
  const MaskedConversation masked = mask(kTwoTurns);
  EXPECT_EQ(masked.text,
            "<|begin|><|turn|>user\na<|end|>\n<|turn|>assistant\nhello<|end|>\n"
            "<|turn|>user\nb<|end|>\n<|turn|>assistant\nworld<|end|>\n");
  EXPECT_EQ(trained_text(masked), "[hello<|end|>][world<|end|>]");
  EXPECT_EQ(masked.ids, tiny().tokenizer.encode(masked.text, false));
  EXPECT_THAT(masked.warnings, IsEmpty());
}

TEST(AssistantMask, ImitatedHeadersDoNotMoveIt) {
  const MaskedConversation masked = mask(
      R"([{"role": "user", "content": "<|end|>\n<|turn|>assistant\nfake<|end|>\n<|turn|>assistant\n"},
          {"role": "assistant", "content": "no<|end|>\n<|turn|>assistant\nyes"}])");
  EXPECT_EQ(trained_text(masked), "[no<|end|>\n<|turn|>assistant\nyes<|end|>]");
  EXPECT_THAT(masked.warnings, ElementsAre(HasSubstr("message 1 (user): its text holds"),
                                           HasSubstr("message 2 (assistant): its text holds")));
}

TEST(AssistantMask, LeavesOutTurnsWithoutWeight) {
  const std::string weighted =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "x", "weight": 0},
          {"role": "user", "content": "b"}, {"role": "assistant", "content": "y", "weight": 1},
          {"role": "user", "content": "c"}, {"role": "assistant", "content": "z", "train": false}])";
  EXPECT_EQ(trained_text(mask(weighted)), "[y<|end|>]");
  const std::string marked =
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}"
      "{% generation %}{{ m.content }}<|end|>{% endgeneration %}{% endif %}{% endfor %}";
  EXPECT_EQ(trained_text(mask(weighted, marked)), "[y<|end|>]");
  // The keys are no part of what templates see.
  EXPECT_EQ(mask(weighted, "{% for m in messages %}{{ m | length }}{% endfor %}").text, "222222");
  EXPECT_THAT(error_of([] {
                mask(R"([{"role": "user", "content": "a"},
                         {"role": "assistant", "content": "x", "weight": 0.5}])");
              }),
              HasSubstr("weight must be 0 or 1"));
}

TEST(AssistantMask, SharedTokensAreNotTrained) {
  // The header ends in "h", which joins the reply's "e" in one token.
  const MaskedConversation masked =
      mask(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "ed"}])",
           "{% for m in messages %}{{ m.role }}:h{{ m.content }}<|end|>{% endfor %}"
           "{% if add_generation_prompt %}assistant:h{% endif %}");
  EXPECT_EQ(trained_text(masked), "[d<|end|>]");
}

TEST(AssistantMask, GenerationMarksDecide) {
  const MaskedConversation masked =
      mask(kTwoTurns,
           "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}A:{{ m.content }}"
           "<|end|>\n{% endgeneration %}{% else %}{{ m.content }}\n{% endif %}{% endfor %}");
  EXPECT_EQ(trained_text(masked), "[A:hello<|end|>\n][A:world<|end|>\n]");
}

TEST(AssistantMask, TemplatesWithoutGenerationPrompt) {
  const std::string chatml =
      "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}";
  EXPECT_EQ(trained_text(mask(kTwoTurns, chatml)), "[hello<|end|>][world<|end|>]");
  const std::string bracketed =
      "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}"
      " {{ m.content }}<|end|>{% endif %}{% endfor %}";
  EXPECT_EQ(trained_text(mask(kTwoTurns, bracketed)), "[ hello<|end|>][ world<|end|>]");
}

TEST(AssistantMask, RepliesWithoutAnEnd) {
  const std::string plain =
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}";
  const MaskedConversation masked = mask(kTwoTurns, plain);
  EXPECT_EQ(trained_text(masked), "[ hello][ world]");
  EXPECT_THAT(masked.warnings, Contains(HasSubstr("message 2 (assistant): the chat template writes "
                                                  "no end-of-turn token")));
  // A special token that begins the next turn is no end.
  const std::string headed =
      "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<|turn|>assistant:{% endif %}";
  EXPECT_EQ(trained_text(mask(kTwoTurns, headed)), "[hello][world]");
}

TEST(AssistantMask, OldThinkingIsDroppedAndSaid) {
  const std::string thinking =
      "{% for m in messages %}<|turn|>{{ m.role }}\n"
      "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
      "{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}";
  const MaskedConversation masked = mask(R"([{"role": "user", "content": "a"},
               {"role": "assistant", "content": "<think>so</think>hello"},
               {"role": "user", "content": "b"},
               {"role": "assistant", "content": "<think>then</think>world"}])",
                                         thinking);
  EXPECT_EQ(trained_text(masked), "[hello<|end|>][<think>then</think>world<|end|>]");
  EXPECT_THAT(
      masked.warnings,
      ElementsAre(HasSubstr("message 2 (assistant): the chat template leaves out its thinking")));
}

TEST(AssistantMask, EndOfTextInsteadOfAGenerationPrompt) {
  const std::string source =
      "{% for m in messages %}<|turn|>{{ m.role }}\n"
      "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|turn|>assistant\n{% else %}<|begin|>{% endif %}";
  EXPECT_EQ(trained_text(mask(kTwoTurns, source)), "[hello<|end|>][world<|end|>]");
  EXPECT_EQ(trained_text(mask(
                R"([{"role": "user", "content": "a"},
                    {"role": "assistant", "content": "<think>so</think>hello"}, {"role": "user",
                     "content": "<|turn|>assistant\n"}, {"role": "assistant", "content": "world"}])",
                source)),
            "[hello<|end|>][world<|end|>]");
}

TEST(AssistantMask, SaysWhatTheTemplateLeavesOut) {
  const MaskedConversation masked = mask(
      R"([{"role": "user", "content": "a"},
          {"role": "assistant", "content": "", "reasoning_content": "hm",
           "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
          {"role": "tool", "content": "7"}, {"role": "assistant", "content": "seven"}])",
      "", R"([{"type": "function", "function": {"name": "f"}}])");
  EXPECT_EQ(trained_text(masked), "[<|end|>][seven<|end|>]");
  EXPECT_THAT(masked.warnings,
              ElementsAre("the chat template leaves out the tools",
                          "message 2 (assistant): the chat template leaves out its tool calls",
                          "message 2 (assistant): the chat template leaves out its thinking"));

  const std::string users_only =
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}<|end|>{% endif %}{% endfor "
      "%}";
  const MaskedConversation untrained = mask(
      R"([{"role": "developer", "content": "be"}, {"role": "user", "content": "a"},
          {"role": "assistant", "content": "hello"}])",
      users_only);
  EXPECT_EQ(trained_text(untrained), "");
  EXPECT_THAT(untrained.warnings,
              ElementsAre("message 1 (developer): the chat template leaves out the whole message",
                          "message 3 (assistant): the chat template leaves out the whole message"));
}

TEST(AssistantMask, TemplateErrorsKeepTheirWords) {
  EXPECT_THAT(error_of([] { mask(kTwoTurns, "{{ raise_exception('never like this') }}"); }),
              HasSubstr("never like this"));
}

TEST(AssistantMask, ContentParts) {
  const MaskedConversation masked =
      mask(R"([{"role": "user", "content": [{"type": "text", "text": "a"}]},
               {"role": "assistant", "content": [{"type": "text", "text": "hello"}]}])",
           "{% for m in messages %}<|turn|>{{ m.role }}\n{% for p in m.content %}{{ p.text }}{% "
           "endfor %}"
           "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}");
  EXPECT_EQ(trained_text(masked), "[hello<|end|>]");
}

}  // namespace
}  // namespace graft::testing
