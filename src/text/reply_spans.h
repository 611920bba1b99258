#pragma once
// Where the replies stand in a rendered conversation.
//
// A reply's span begins right after the header that a generation prompt would end with, and ends
// with the end-of-turn token. Searching the text for headers would be fooled by text that imitates
// one, and rendering replies alone would lose what templates do with the history. So the whole
// conversation is rendered again with one reply changed: where the two texts part is inside that
// reply, and what they have in common from there on is behind it.

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "text/conversation_renderer.h"
#include "text/special_finder.h"
#include "text/tokenizer.h"

namespace graft {

struct ReplySpan {
  size_t message = 0;     // index of the assistant's message
  ByteRange bytes;        // in the rendered text
  bool ends_turn = true;  // false where the template writes no end-of-turn token after this reply
};

// The spans of all assistant messages, in order; one that leaves no trace in the text has none.
std::vector<ReplySpan> find_reply_spans(ConversationRenderer& renderer,
                                        const SpecialFinder& finder);

// A message with its texts replaced by a marker that occurs nowhere in the conversation.
enum class Replace {
  kEverything,  // content, thinking, names and arguments of tool calls
  kContent,
  kThinking,       // every other text than content
  kArguments,      // of tool calls
  kToolCalls,      // names and arguments
  kAbsentContent,  // content, which is added where it is null or missing
};
nlohmann::ordered_json with_marker(const nlohmann::ordered_json& message, const std::string& marker,
                                   Replace what);
std::string choose_marker(std::string_view text);

}  // namespace graft
