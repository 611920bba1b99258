#include "text/conversation_renderer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace graft {
namespace {

using nlohmann::ordered_json;

ordered_json parse(const std::string& text, const std::string& what, const std::string& where) {
  ordered_json value = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) throw Error(what + " is not valid JSON", where);
  return value;
}

std::string dump(const ordered_json& value, const std::string& where) {
  try {
    return value.dump();
  } catch (const nlohmann::json::exception&) {
    throw Error("the conversation is not valid UTF-8", where);
  }
}

ordered_json list_or_null(const std::string& text, const std::string& what,
                          const std::string& where) {
  if (text.empty()) return nullptr;
  ordered_json value = parse(text, what, where);
  if (value.is_null()) return value;
  if (!value.is_array()) throw Error(what + " must be a list", where);
  // An empty list, which data sets often carry in every row, means the same as none.
  return value.empty() ? ordered_json(nullptr) : value;
}

// "{...}" without its closing brace.
std::string open_object(const ordered_json& object, const std::string& where) {
  std::string text = dump(object, where);
  text.pop_back();
  return text;
}

bool has_null_key(const ordered_json& message) {
  return std::any_of(message.begin(), message.end(), [](const auto& v) { return v.is_null(); });
}

}  // namespace

std::vector<ordered_json> parse_messages(const std::string& json, const std::string& where) {
  const ordered_json list = parse(json, "the list of messages", where);
  if (!list.is_array()) throw Error("messages must be a list", where);
  std::vector<ordered_json> messages;
  for (const ordered_json& message : list) {
    const auto role = message.is_object() ? message.find("role") : message.end();
    if (!message.is_object() || role == message.end() || !role->is_string()) {
      throw Error(fmt::format("message {} has no role", messages.size() + 1), where,
                  "each message is an object with \"role\" and \"content\"");
    }
    messages.push_back(message);
  }
  return messages;
}

ConversationRenderer::ConversationRenderer(const ChatTemplate& chat_template,
                                           const Conversation& conversation,
                                           const TemplateSettings& settings,
                                           bool add_generation_prompt, NullKeys null_keys)
    : template_(chat_template),
      messages_(parse_messages(conversation.messages, chat_template.where())),
      date_(settings.date.empty() ? today() : settings.date),
      add_generation_prompt_(add_generation_prompt) {
  const std::string& where = chat_template.where();
  if (messages_.empty()) throw Error("the conversation has no messages", where);

  ordered_json variables = ordered_json::object();
  for (const auto& [name, value] : chat_template.special_tokens()) variables[name] = value;
  if (!settings.variables.empty()) {
    const ordered_json more = parse(settings.variables, "template variables", where);
    if (!more.is_object()) throw Error("template variables must be an object", where);
    for (const auto& [name, value] : more.items()) {
      if (name == "messages" || name == "tools" || name == "add_generation_prompt") {
        throw Error(fmt::format("\"{}\" cannot be a template variable", name), where);
      }
      variables[name] = value;
    }
  }
  if (!conversation.documents.empty() || !variables.contains("documents")) {
    variables["documents"] = list_or_null(conversation.documents, "documents", where);
  }
  variables["tools"] = nullptr;
  open_without_tools_ = open_object(variables, where);
  variables["tools"] = list_or_null(conversation.tools, "tools", where);
  open_ = open_object(variables, where);

  const auto render_plain = [&](bool drop) {
    drop_null_keys_ = drop;
    texts_.clear();
    for (const ordered_json& message : messages_) texts_.push_back(message_text(message));
    plain_ =
        template_.render_variables(this->variables(texts_, add_generation_prompt_, true), date_);
  };
  const bool may_keep = null_keys == NullKeys::kDropOrKeep &&
                        std::any_of(messages_.begin(), messages_.end(), has_null_key);
  try {
    render_plain(null_keys != NullKeys::kKeep);
  } catch (const Error& first) {
    if (!may_keep) throw;
    try {
      render_plain(false);
    } catch (const Error&) {
      throw first;
    }
  }
}

std::string ConversationRenderer::message_text(const ordered_json& message) const {
  if (!drop_null_keys_ || !has_null_key(message)) return dump(message, template_.where());
  ordered_json kept = ordered_json::object();
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) kept[key] = value;
  }
  return dump(kept, template_.where());
}

std::string ConversationRenderer::variables(std::span<const std::string> messages,
                                            bool add_generation_prompt, bool with_tools) const {
  std::string text = with_tools ? open_ : open_without_tools_;
  text += add_generation_prompt ? ",\"add_generation_prompt\":true"
                                : ",\"add_generation_prompt\":false";
  text += ",\"messages\":[";
  for (size_t i = 0; i < messages.size(); ++i) {
    if (i > 0) text += ',';
    text += messages[i];
  }
  return text + "]}";
}

const std::optional<std::string>& ConversationRenderer::attempt(const std::string& variables) {
  const auto found = kept_.find(variables);
  if (found != kept_.end()) return found->second;
  std::optional<std::string> text;
  try {
    text = template_.render_variables(variables, date_).text;
  } catch (const Error&) {
    // A variant that the template refuses tells nothing.
  }
  return kept_.emplace(variables, std::move(text)).first->second;
}

const std::optional<std::string>& ConversationRenderer::replaced(size_t index,
                                                                 const ordered_json& message) {
  std::vector<std::string> texts = texts_;
  texts[index] = message_text(message);
  return attempt(variables(texts, add_generation_prompt_, true));
}

const std::optional<std::string>& ConversationRenderer::beginning(size_t count,
                                                                  bool add_generation_prompt) {
  return attempt(variables(std::span(texts_).first(count), add_generation_prompt, true));
}

const std::optional<std::string>& ConversationRenderer::ending_with(size_t index,
                                                                    const ordered_json& message) {
  std::vector<std::string> texts(texts_.begin(), texts_.begin() + static_cast<ptrdiff_t>(index));
  texts.push_back(message_text(message));
  return attempt(variables(texts, false, true));
}

const std::optional<std::string>& ConversationRenderer::without_tools() {
  return attempt(variables(texts_, add_generation_prompt_, false));
}

const std::optional<std::string>& ConversationRenderer::probe(bool add_generation_prompt) {
  const std::vector<std::string> texts = {R"({"role":"user","content":"x"})"};
  return attempt(variables(texts, add_generation_prompt, true));
}

}  // namespace graft
