#pragma once
// The file that --messages names: a conversation, read strictly, its keys in their order (templates
// print tools as they are written).
//
//   const Conversation conversation = read_conversation("question.json");

#include <string>

#include "text/chat_template.h"

namespace graft {

// FILE holds {"messages": [...], "tools": [...], "documents": [...]}, or the list of messages
// alone. Raises Error naming the file.
Conversation read_conversation(const std::string& path);

}  // namespace graft
