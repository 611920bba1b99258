#include "text/assistant_mask.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "text/conversation_renderer.h"
#include "text/dropped_text.h"
#include "text/reply_spans.h"

namespace graft {
namespace {

using nlohmann::ordered_json;

// Reads and removes the keys that say whether a message is trained.
bool take_training_keys(ordered_json& message, size_t index, const std::string& where) {
  bool trained = true;
  if (const auto weight = message.find("weight"); weight != message.end()) {
    const bool valid = weight->is_null() || (weight->is_number() && (*weight == 0 || *weight == 1));
    if (!valid) {
      throw Error(fmt::format("message {}: weight must be 0 or 1", index + 1), where,
                  "other weights of a turn are not supported");
    }
    if (*weight == 0) trained = false;
    message.erase("weight");
  }
  if (const auto train = message.find("train"); train != message.end()) {
    if (!train->is_null() && !train->is_boolean()) {
      throw Error(fmt::format("message {}: train must be true or false", index + 1), where);
    }
    if (*train == false) trained = false;
    message.erase("train");
  }
  return trained;
}

bool overlaps(const ByteRange& a, const ByteRange& b) { return a.begin < b.end && b.begin < a.end; }

bool contains(const ByteRange& outer, const ByteRange& inner) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

void mark(const Encoding& encoding, const ByteRange& range, bool touching,
          std::vector<uint8_t>& trained) {
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    const ByteRange& token = encoding.offsets[i];
    if (token.begin == token.end) continue;
    if (touching ? overlaps(token, range) : contains(range, token)) trained[i] = 1;
  }
}

}  // namespace

AssistantMasker::AssistantMasker(Tokenizer tokenizer, ChatTemplate chat_template)
    : tokenizer_(std::move(tokenizer)), template_(std::move(chat_template)), finder_(tokenizer_) {}

MaskedConversation AssistantMasker::mask(const Conversation& conversation,
                                         const TemplateSettings& settings,
                                         bool add_generation_prompt, NullKeys null_keys) const {
  std::vector<ordered_json> messages = parse_messages(conversation.messages, template_.where());
  std::vector<bool> wanted;
  for (size_t i = 0; i < messages.size(); ++i) {
    wanted.push_back(take_training_keys(messages[i], i, template_.where()));
  }
  Conversation bare = conversation;
  try {
    bare.messages = ordered_json(messages).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error("the conversation is not valid UTF-8", template_.where());
  }

  ConversationRenderer renderer(template_, bare, settings, add_generation_prompt, null_keys);
  const std::vector<ReplySpan> replies = find_reply_spans(renderer, finder_);
  MaskedConversation result;
  result.text = renderer.plain().text;
  const Encoding encoding = tokenizer_.encode_with_offsets(result.text, false);
  result.ids = encoding.ids;
  result.trained.assign(encoding.ids.size(), 0);
  for (const ReplySpan& reply : replies) {
    result.spans.push_back({reply.message, reply.bytes, wanted[reply.message], reply.ends_turn});
  }
  if (template_.has_generation_marks()) {
    for (const ByteRange& range : renderer.plain().generation) {
      const bool is_unwanted = std::any_of(
          result.spans.begin(), result.spans.end(),
          [&](const AssistantSpan& span) { return !span.trained && overlaps(span.bytes, range); });
      if (!is_unwanted) mark(encoding, range, /*touching=*/true, result.trained);
    }
  } else {
    for (const AssistantSpan& span : result.spans) {
      if (span.trained) mark(encoding, span.bytes, /*touching=*/false, result.trained);
    }
  }
  const bool has_tools = !conversation.tools.empty();
  result.warnings = find_losses(renderer, finder_, replies, has_tools);
  return result;
}

}  // namespace graft
