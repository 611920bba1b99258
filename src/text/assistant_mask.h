#pragma once
// Which tokens of a conversation are trained: those that the assistant says.
//
// The whole conversation is rendered and tokenised once, special tokens being those that the
// template wrote. Where the template has {% generation %} blocks, they decide, as in transformers:
// every token that touches one is trained. Otherwise the replies' spans (text/reply_spans.h)
// decide, and a token must lie wholly inside one: a token that a reply shares with its header is
// not trained.
//
// An assistant message with `weight: 0` or `train: false` is not trained; both keys are taken away
// before rendering.
//
//   const AssistantMasker masker(tokenizer, chat_template);
//   const MaskedConversation masked = masker.mask({.messages = messages}, {}, false);

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/special_finder.h"
#include "text/tokenizer.h"

namespace graft {

struct AssistantSpan {
  size_t message = 0;     // index in the conversation
  ByteRange bytes;        // of the text
  bool trained = true;    // false for weight: 0
  bool ends_turn = true;  // false where no end-of-turn token follows the reply
};

struct MaskedConversation {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<uint8_t> trained;  // 0 or 1 for each id
  std::vector<AssistantSpan> spans;
  // What a careful person would want to know of this conversation: what the template left out,
  // special tokens in its texts, replies without an end. Messages are counted from 1.
  std::vector<std::string> warnings;
};

class AssistantMasker {
 public:
  AssistantMasker(Tokenizer tokenizer, ChatTemplate chat_template);

  // Raises Error where the template refuses the conversation. Safe to call from several threads at
  // once.
  MaskedConversation mask(const Conversation& conversation, const TemplateSettings& settings,
                          bool add_generation_prompt,
                          NullKeys null_keys = NullKeys::kDropOrKeep) const;

  const Tokenizer& tokenizer() const { return tokenizer_; }
  const ChatTemplate& chat_template() const { return template_; }

 private:
  Tokenizer tokenizer_;
  ChatTemplate template_;
  SpecialFinder finder_;
};

}  // namespace graft
