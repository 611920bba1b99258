#pragma once
// Renders one conversation many times over, with a message changed here or left out there.
//
// Used by chat_template.cpp for the plain case, and by reply_spans.cpp, which finds out from such
// changes where a reply stands. Results are kept, as the same variant is often asked for twice.

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/chat_template.h"

namespace graft {

// A JSON list of messages; raises Error unless it is a list of objects with a role each.
std::vector<nlohmann::ordered_json> parse_messages(const std::string& json,
                                                   const std::string& where);

class ConversationRenderer {
 public:
  // Renders the conversation as it is, once, which settles whether null keys are dropped or kept.
  ConversationRenderer(const ChatTemplate& chat_template, const Conversation& conversation,
                       const TemplateSettings& settings, bool add_generation_prompt,
                       NullKeys null_keys);

  const Rendered& plain() const { return plain_; }
  const std::vector<nlohmann::ordered_json>& messages() const { return messages_; }
  size_t size() const { return messages_.size(); }

  // The text with message `index` replaced; nothing if the template refuses it.
  const std::optional<std::string>& replaced(size_t index, const nlohmann::ordered_json& message);
  // The text of the first `count` messages, with or without a generation prompt.
  const std::optional<std::string>& beginning(size_t count, bool add_generation_prompt);
  // The text of the first `index` messages and then `message`, without a generation prompt.
  const std::optional<std::string>& ending_with(size_t index,
                                                const nlohmann::ordered_json& message);
  // The text of the same conversation without its tools.
  const std::optional<std::string>& without_tools();
  // The text of one user message, with or without a generation prompt.
  const std::optional<std::string>& probe(bool add_generation_prompt);

 private:
  std::string message_text(const nlohmann::ordered_json& message) const;
  std::string variables(std::span<const std::string> messages, bool add_generation_prompt,
                        bool with_tools) const;
  const std::optional<std::string>& attempt(const std::string& variables);

  const ChatTemplate& template_;
  std::vector<nlohmann::ordered_json> messages_;
  std::vector<std::string> texts_;  // messages_ as JSON, null keys dropped or kept
  std::string open_;                // all variables but messages and add_generation_prompt
  std::string open_without_tools_;
  std::string date_;
  bool add_generation_prompt_;
  bool drop_null_keys_ = true;
  Rendered plain_;
  std::map<std::string, std::optional<std::string>> kept_;
};

}  // namespace graft
