#pragma once
// Chat templates: a conversation as the one text that its model reads.
//
// Templates are Jinja sources as models ship them, rendered as transformers renders them: blocks
// trimmed, loop controls, raise_exception, strftime_now, tojson with Python's spacing, Python's
// string methods, and
// {% generation %} blocks. What a template may do is bounded (work, depth, length), and it reads no
// file.
//
// Where the result would be a guess, rendering raises Error instead: a null, list or object that is
// printed without tojson, which Python would write in its own notation.
//
//   ChatTemplate chat = ChatTemplate::compile(source, "model/chat_template.jinja", {{"bos_token",
//   "<s>"}}); Rendered out = chat.render({.messages = R"([{"role": "user", "content": "Hi"}])"},
//   {}, true);

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

struct graft_template;

namespace graft {

// A conversation in JSON texts.
struct Conversation {
  std::string messages = "[]";  // a list of {"role", "content", ...}
  std::string tools = "";       // a list, or empty for none
  std::string documents = "";   // a list, or empty for none
};

// What a template sees besides the conversation.
struct TemplateSettings {
  std::string date = "";       // YYYY-MM-DD, for strftime_now; empty: today
  std::string variables = "";  // a JSON object of further variables, or empty
};

struct Rendered {
  std::string text;
  std::vector<ByteRange> generation;  // what {% generation %} blocks wrote, in order
};

// Message keys whose value is null. transformers drops them before rendering; some templates
// (DeepSeek's) need `content: null` beside tool calls, and fail without it.
enum class NullKeys {
  kDrop,
  kKeep,
  kDropOrKeep,  // drop, and where the template then fails, keep
};

class ChatTemplate {
 public:
  // `special_tokens` are the variables bos_token, eos_token, ...; `where` names the source in
  // errors.
  static ChatTemplate compile(std::string_view source, const std::string& where,
                              std::map<std::string, std::string> special_tokens);

  // Raises Error with the template's own message where it raises an exception.
  Rendered render(const Conversation& conversation, const TemplateSettings& settings,
                  bool add_generation_prompt, NullKeys null_keys = NullKeys::kDropOrKeep) const;

  // Renders with exactly these variables, a JSON object, and the clock at `date`.
  Rendered render_variables(std::string_view variables, const std::string& date) const;

  bool has_generation_marks() const { return has_generation_marks_; }
  const std::string& source() const { return *source_; }
  const std::string& where() const { return where_; }
  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }

 private:
  ChatTemplate() = default;

  std::shared_ptr<const graft_template> handle_;
  std::shared_ptr<const std::string> source_;
  std::string where_;
  std::map<std::string, std::string> special_tokens_;
  bool has_generation_marks_ = false;
};

std::string today();  // the local date, YYYY-MM-DD

// Raises Error unless `date` is of the form YYYY-MM-DD and exists.
void check_date(const std::string& date);

}  // namespace graft
