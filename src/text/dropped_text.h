#pragma once
// What a chat template leaves out without a word: tools, tool calls, thinking, whole messages. And
// what it cannot tell apart: a special token that stands in a message's own text.

#include <string>
#include <vector>

#include "text/conversation_renderer.h"
#include "text/reply_spans.h"
#include "text/special_finder.h"

namespace graft {

// Warnings for people, messages counted from 1.
std::vector<std::string> find_losses(ConversationRenderer& renderer, const SpecialFinder& finder,
                                     const std::vector<ReplySpan>& spans, bool has_tools);

}  // namespace graft
