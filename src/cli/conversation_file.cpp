#include "cli/conversation_file.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "formats/json.h"

namespace graft {

Conversation read_conversation(const std::string& path) {
  std::string text = read_text_file(path);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  parse_json(text, path);  // strict, with places; but it sorts keys
  const auto document = nlohmann::ordered_json::parse(text);
  Conversation conversation;
  if (document.is_array()) {
    conversation.messages = document.dump();
    return conversation;
  }
  if (!document.is_object() || !document.contains("messages")) {
    throw Error("the file has no messages", path,
                "it holds {\"messages\": [...], \"tools\": [...]}");
  }
  conversation.messages = document["messages"].dump();
  const auto optional = [&](const char* key, std::string& value) {
    if (document.contains(key) && !document[key].is_null()) value = document[key].dump();
  };
  optional("tools", conversation.tools);
  optional("documents", conversation.documents);
  return conversation;
}

}  // namespace graft
