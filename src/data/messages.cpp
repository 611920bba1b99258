#include "data/messages.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "data/row_json.h"

namespace graft {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::string_view, 7> kRoles = {"system", "developer", "user",   "assistant",
                                                    "tool",   "function",  "ipython"};

constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kSpeakers = {{
    {"human", "user"},
    {"user", "user"},
    {"gpt", "assistant"},
    {"assistant", "assistant"},
    {"chatgpt", "assistant"},
    {"bing", "assistant"},
    {"bard", "assistant"},
    {"model", "assistant"},
    {"bot", "assistant"},
    {"system", "system"},
    {"developer", "developer"},
    {"tool", "tool"},
    {"observation", "tool"},
    {"function_response", "tool"},
    {"tool_response", "tool"},
}};

std::string quoted_list(const auto& names) {
  std::string list;
  for (const std::string_view name : names) list += (list.empty() ? "" : ", ") + std::string(name);
  return list;
}

// "line 2: messages[1]"
std::string message_place(const std::string& where, std::string_view key, size_t index) {
  return fmt::format("{}: {}[{}]", where, key, index);
}

bool is_known_role(std::string_view role, std::string_view template_source) {
  if (std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end()) return true;
  if (role.empty() || role.find_first_of("'\"") != std::string_view::npos) return false;
  return template_source.find(fmt::format("'{}'", role)) != std::string_view::npos ||
         template_source.find(fmt::format("\"{}\"", role)) != std::string_view::npos;
}

// Takes "weight" (0 or 1) and "train" (a truth value) out of a message; true if it is not to be
// trained.
bool take_exclusion(ordered_json& message, const std::string& place) {
  bool excluded = false, asked = false;
  if (const auto it = message.find("weight"); it != message.end()) {
    const bool numeric = it->is_number() && (it->get<double>() == 0 || it->get<double>() == 1);
    if (!numeric) {
      throw Error(fmt::format("\"weight\" must be 0 or 1, not {}", it->dump()), place);
    }
    excluded = it->get<double>() == 0;
    asked = !excluded;
    message.erase("weight");
  }
  if (const auto it = message.find("train"); it != message.end()) {
    if (!it->is_boolean()) {
      throw Error(fmt::format("\"train\" must be true or false, not {}", it->dump()), place);
    }
    excluded = excluded || !it->get<bool>();
    asked = asked || it->get<bool>();
    message.erase("train");
  }
  if (asked && message["role"] != "assistant") {
    throw Error(
        fmt::format("a turn of role \"{}\" asks to be trained", message["role"].get<std::string>()),
        place, "only assistant turns can be; data.train_on: all trains every token");
  }
  return excluded;
}

void drop_null_keys(ordered_json& object, std::string_view kept = "") {
  for (auto it = object.begin(); it != object.end();) {
    if (it->is_null() && (kept.empty() || it.key() != kept)) it = object.erase(it);
    else ++it;
  }
}

// Content given as [{"type": "text", "text": ...}] becomes that text.
std::string text_of_parts(const ordered_json& parts, const std::string& place) {
  if (parts.size() == 1 && parts[0].is_object()) {
    const ordered_json& part = parts[0];
    const bool text = part.contains("text") && part["text"].is_string() &&
                      (!part.contains("type") || part["type"] == "text");
    if (text) return part["text"].get<std::string>();
  }
  throw Error("\"content\" is a list that is not one part of text", place,
              "only text can be trained on: give \"content\" as one string");
}

bool calls_tools(const ordered_json& message) {
  const auto it = message.find("tool_calls");
  return it != message.end() && it->is_array() && !it->empty();
}

void check_content(ordered_json& message, const std::string& place) {
  const auto it = message.find("content");
  const bool absent = it == message.end() || it->is_null();
  if (absent && message["role"] == "assistant" && calls_tools(message)) return;
  if (it == message.end()) throw Error("\"content\" is missing", place);
  if (it->is_array()) {
    *it = text_of_parts(*it, place);
  } else if (!it->is_string()) {
    throw Error(fmt::format("\"content\" must be text, not {} ({})", it->type_name(),
                            it->dump().substr(0, 40)),
                place, "put it in double quotes");
  }
}

void check_tool_calls(const ordered_json& message, const std::string& place) {
  const auto it = message.find("tool_calls");
  if (it == message.end()) return;
  if (!it->is_array()) throw Error("\"tool_calls\" must be a list", place);
  for (const ordered_json& call : *it) {
    if (!call.is_object()) throw Error("each of \"tool_calls\" must be an object", place);
  }
}

void append_message(ordered_json message, std::string_view template_source,
                    const std::string& place, NormalRow& row) {
  if (!message.is_object()) {
    throw Error(fmt::format("a message must be an object, not {}", message.type_name()), place);
  }
  drop_null_keys(message, "content");
  if (!message.contains("role")) throw Error("\"role\" is missing", place);
  if (!message["role"].is_string()) throw Error("\"role\" must be text", place);
  const auto role = message["role"].get<std::string>();
  if (!is_known_role(role, template_source)) {
    throw Error(fmt::format("unknown role \"{}\"", role), place,
                "use one of: " + quoted_list(kRoles));
  }
  check_content(message, place);
  check_tool_calls(message, place);
  row.excluded.push_back(take_exclusion(message, place));
  row.messages.push_back(std::move(message));
}

void check_list(const ordered_json& messages, std::string_view key, const std::string& where) {
  if (!messages.is_array()) {
    throw Error(fmt::format("\"{}\" must be a list of messages, not {}", key, messages.type_name()),
                where);
  }
}

std::string_view role_of_speaker(const std::string& speaker, const std::string& place) {
  for (const auto& [name, role] : kSpeakers) {
    if (name == speaker) return role;
  }
  std::vector<std::string_view> names;
  for (const auto& [name, role] : kSpeakers) names.push_back(name);
  throw Error(fmt::format("unknown speaker \"{}\"", speaker), place,
              "use one of: " + quoted_list(names) + ", function_call");
}

// A call written as the JSON text {"name": ..., "arguments": ...}.
ordered_json message_of_function_call(const std::string& value, const std::string& place) {
  ordered_json call = parse_json_text(value, place);
  if (!call.is_object() || !call.contains("name") || !call.contains("arguments")) {
    throw Error("the value of a function_call must be JSON with \"name\" and \"arguments\"", place);
  }
  ordered_json message;
  message["role"] = "assistant";
  message["content"] = "";
  message["tool_calls"] = ordered_json::array(
      {ordered_json::object({{"type", "function"}, {"function", std::move(call)}})});
  return message;
}

ordered_json message_of_sharegpt(ordered_json&& message, const std::string& place) {
  if (!message.is_object()) {
    throw Error(fmt::format("a message must be an object, not {}", message.type_name()), place);
  }
  if (!message.contains("from")) {
    if (message.contains("role")) return std::move(message);
    throw Error("\"from\" is missing (the speaker's role)", place);
  }
  if (!message["from"].is_string()) throw Error("\"from\" must be text", place);
  if (!message.contains("value")) throw Error("\"value\" is missing (the turn's content)", place);
  if (!message["value"].is_string()) {
    throw Error(fmt::format("\"value\" (the turn's content) must be text, not {}",
                            message["value"].type_name()),
                place);
  }
  const auto speaker = message["from"].get<std::string>();
  const auto value = message["value"].get<std::string>();
  ordered_json turn;
  if (speaker == "function_call") {
    turn = message_of_function_call(value, place);
  } else {
    turn["role"] = role_of_speaker(speaker, place);
    turn["content"] = value;
  }
  for (const char* key : {"weight", "train"}) {
    if (message.contains(key)) turn[key] = message[key];
  }
  return turn;
}

bool is_blank(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isspace(c) != 0; });
}

bool is_tool_result(std::string_view role) {
  return role == "tool" || role == "function" || role == "ipython";
}

// Whether a turn may follow the one before it; `previous` is empty at the start.
bool follows(std::string_view previous, std::string_view role) {
  const bool opening = previous.empty() || previous == "system" || previous == "developer";
  if (role == "system" || role == "developer") return opening;
  if (role == "user") return opening || previous == "assistant";
  if (role == "assistant") return previous == "user" || is_tool_result(previous);
  return previous == "assistant" || is_tool_result(previous);
}

bool is_standard(std::string_view role) {
  return std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end();
}

}  // namespace

void append_messages(ordered_json messages, std::string_view key, std::string_view template_source,
                     const std::string& where, NormalRow& row) {
  check_list(messages, key, where);
  for (size_t i = 0; i < messages.size(); ++i) {
    append_message(std::move(messages[i]), template_source, message_place(where, key, i), row);
  }
}

void append_sharegpt(ordered_json messages, std::string_view key, std::string_view template_source,
                     const std::string& where, NormalRow& row) {
  check_list(messages, key, where);
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string place = message_place(where, key, i);
    append_message(message_of_sharegpt(std::move(messages[i]), place), template_source, place, row);
  }
}

void drop_nulls(ordered_json& value) {
  if (value.is_object()) drop_null_keys(value);
  if (value.is_structured()) {
    for (ordered_json& inner : value) drop_nulls(inner);
  }
}

void append_turn(std::string_view role, std::string content, NormalRow& row) {
  ordered_json message;
  message["role"] = role;
  message["content"] = std::move(content);
  row.messages.push_back(std::move(message));
  row.excluded.push_back(false);
}

void note_turns(NormalRow& row) {
  std::string previous;
  bool disorder = false;
  for (size_t i = 0; i < row.messages.size(); ++i) {
    const ordered_json& message = row.messages[i];
    const auto role = message["role"].get<std::string>();
    if (role == "assistant" && !calls_tools(message) &&
        is_blank(message["content"].get<std::string>())) {
      row.notes.push_back("has an empty reply: only its end-of-turn token can be trained");
    }
    const bool judged = is_standard(role) && (previous.empty() || is_standard(previous));
    if (judged && !disorder && !follows(previous, role)) {
      disorder = true;
      row.notes.push_back(fmt::format(
          "has turns out of order ({})",
          previous.empty() ? "begins with " + role : fmt::format("{} after {}", role, previous)));
    }
    previous = role;
  }
}

}  // namespace graft
